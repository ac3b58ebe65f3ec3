/*
 * One guest as main sees it: started and ended through the keeper, spoken to
 * over its channel, watched for signs of life. What its sandbox's row makes of
 * that is sandbox.c's affair.
 */
#ifndef PADDOCK_DAEMON_GUEST_LINK_H
#define PADDOCK_DAEMON_GUEST_LINK_H

#include "common/buf.h"
#include "daemon/channel.h"
#include "daemon/context.h"
#include "daemon/keeper/protocol.h"

struct guest_link;

/* From the loop; each may free the link. */
struct guest_link_handler {
    void (*on_ready)(void *arg);
    /* Once: the guest and its cgroup are gone, or never were. reason: of the closed list (REASON),
     * borrowed. */
    void (*on_ended)(void *arg, const char *reason);
};

/* Asks the keeper for a guest. Takes env's contents ("NAME=value\0" …). rx: see channel_new. */
struct guest_link *guest_link_new(struct daemon *d, void *rx, const struct keeper_request *start,
                                  struct buf *env, const struct guest_link_handler *handler,
                                  void *arg, struct error *err);
/* A guest that the keeper held for a former main, which had made it ready: on_ready comes when its
 * streams are resynchronised, and channel_find knows them. Owns fd, its socket. */
struct guest_link *guest_link_take_over(struct daemon *d, void *rx, const char *id, int fd,
                                        uint64_t nonce, const struct guest_link_handler *handler,
                                        void *arg, struct error *err);
/* Only once it ended, or when the keeper is to be left to itself. NULL is fine. */
void guest_link_free(struct guest_link *guest);

/* The keeper reports on this guest. Owns fd. */
void guest_link_report(struct guest_link *guest, const struct keeper_report *report, int fd);
/* Ends it: its streams are lost at once, on_ended follows when it is gone. reason: why, if the row
 * does not know better; the first call counts. */
void guest_link_end(struct guest_link *guest, const char *reason);
/* Why a guest ended that no link was made for, by the keeper's report. */
const char *guest_link_reason(const struct keeper_report *report);
/* The keeper said that it started, or held it, and not yet that it ended. */
bool guest_link_is_started(const struct guest_link *guest);
/* CPU time of the guest in all, as last measured; right once it ended. */
uint64_t guest_link_cpu_us(const struct guest_link *guest);
uint32_t guest_link_oom_kills(const struct guest_link *guest);
/* Asks the keeper for both; its report (KEEPER_USAGE) follows. False: it is not ready, or the
 * keeper is gone. */
bool guest_link_measure(struct guest_link *guest);
/* NULL unless it is ready. Borrowed. */
struct channel *guest_link_channel(const struct guest_link *guest);

#endif
