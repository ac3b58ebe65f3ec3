/*
 * Beats from the loop to the supervisor, which takes their absence for a main
 * that hangs. Made by run.c. What must stay true: a beat is sent by a timer of
 * the loop and by nothing else, so that it proves that the loop turns.
 */
#include "daemon/parent_link.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

struct parent_link {
    struct daemon *d;
    int sock;
    struct loop_io *io;
    struct loop_timer *beat;
    void (*on_leave)(struct daemon *d);
    void (*on_lost)(struct daemon *d);
};

void parent_link_say(const struct parent_link *link, enum main_word word)
{
    const struct main_saying said = {.word = word, .link_version = MAIN_LINK_VERSION};

    /* A socket that is full has beats enough in it. */
    (void)!send(link->sock, &said, sizeof(said), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void beat(void *arg)
{
    struct parent_link *link = arg;

    parent_link_say(link, MAIN_BEAT);
    if (loop_timer_arm(link->beat, link->d->config->daemon_watchdog / MAIN_BEATS) < 0)
        log_fail(&link->d->log, "no_timer", NULL);
}

static void io_ready(int fd, unsigned events, void *arg)
{
    struct parent_link *link = arg;
    struct main_order *order = calloc(1, sizeof(*order));
    ssize_t len = order ? recv(fd, order, sizeof(*order), MSG_DONTWAIT) : -1;
    uint32_t verb = len == (ssize_t)sizeof(*order) ? order->verb : 0;
    bool nothing = len < 0 && (!order || errno == EAGAIN || errno == EINTR);

    (void)events;
    free(order);
    if (nothing)
        return;
    if (verb == MAIN_LEAVE) {
        link->on_leave(link->d);
        return;
    }
    loop_io_set(link->io, 0);
    link->on_lost(link->d);
}

struct parent_link *parent_link_new(struct daemon *d, int sock, void (*on_leave)(struct daemon *d),
                                    void (*on_lost)(struct daemon *d), struct error *err)
{
    struct parent_link *link = calloc(1, sizeof(*link));

    if (link) {
        link->d = d;
        link->sock = sock;
        link->on_leave = on_leave;
        link->on_lost = on_lost;
        link->io = loop_io_new(d->loop, sock, LOOP_READ, io_ready, link);
        link->beat = loop_timer_new(d->loop, beat, link);
    }
    if (!link || !link->io || !link->beat || loop_timer_arm(link->beat, 0) < 0) {
        parent_link_free(link);
        error_set(err, ERR_SYSTEM, "out of memory");
        return NULL;
    }
    return link;
}

void parent_link_free(struct parent_link *link)
{
    if (!link)
        return;
    loop_io_free(link->io);
    loop_timer_free(link->beat);
    free(link);
}
