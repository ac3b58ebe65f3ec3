/*
 * What guests use, sampled: the CPU time that makes a sandbox active, and that
 * is kept in its row from time to time, so that a crash of everything forgets
 * little of it. Called by sandboxes.c.
 *
 * Must stay true: a sample costs the keeper a few reads a guest, and the
 * database one statement a minute, however many guests there are.
 */
#include "daemon/usage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "daemon/node.h"
#include "daemon/sandbox_internal.h"

#define SAMPLE_MS 10000
#define SAMPLES_A_RECORD 6
/* CPU use of a tenth of a core over a sample is activity. */
#define ACTIVE_US_A_MS 100
/* Two arrays for 10,000 sandboxes (node.max_sandboxes): 37 and 20 bytes an entry. */
#define ARRAY_MAX ((size_t)1024 * 1024)

struct usage {
    struct sandboxes *all;
    struct loop_timer *timer;
    unsigned samples;
    bool recording; /* a statement is on its way */
};

static void recorded(const PGresult *res, const struct error *err, void *arg)
{
    struct usage *usage = arg;

    usage->recording = false;
    if (!res)
        log_error_value(&usage->all->d->log, LOG_WARN, "usage_not_recorded", err);
}

static void record(struct usage *usage)
{
    struct daemon *d = usage->all->d;
    _cleanup_buf_ struct buf ids = BUF_INIT(ARRAY_MAX);
    _cleanup_buf_ struct buf times = BUF_INIT(ARRAY_MAX);
    struct error err = ERROR_INIT;
    const struct sandbox *s;
    unsigned cursor = 0;
    const char *comma = "";

    while ((s = idmap_next(usage->all->by_id, &cursor))) {
        if (s->phase != PHASE_READY || !s->guest)
            continue;
        buf_printf(&ids, "%s%s", *comma ? comma : "{", s->id);
        buf_printf(&times, "%s%" PRIu64, *comma ? comma : "{", guest_link_cpu_us(s->guest));
        comma = ",";
    }
    if (!*comma)
        return;
    buf_append_str(&ids, "}");
    buf_append_str(&times, "}");
    const struct dbq_param params[] = {{.value = node_number_text(d->node)},
                                       {.value = node_epoch_text(d->node)},
                                       {.value = buf_cstr(&ids)},
                                       {.value = buf_cstr(&times)}};

    if (ids.overflowed || times.overflowed ||
        dbq_send(d->db, STMT_SANDBOXES_SET_CPU, params, recorded, usage, &err) < 0)
        log_fail(&d->log, "usage_not_recorded", "reason=%s", err.detail);
    else
        usage->recording = true;
}

static void on_timer(void *arg)
{
    struct usage *usage = arg;
    struct sandbox *s;
    unsigned cursor = 0;

    while ((s = idmap_next(usage->all->by_id, &cursor)))
        if (s->phase == PHASE_READY && s->guest)
            (void)guest_link_measure(s->guest);
    if (++usage->samples % SAMPLES_A_RECORD == 0 && !usage->recording)
        record(usage);
    if (loop_timer_arm(usage->timer, SAMPLE_MS) < 0)
        log_fail(&usage->all->d->log, "no_timer", NULL);
}

struct usage *usage_new(struct sandboxes *all)
{
    struct usage *usage = calloc(1, sizeof(*usage));

    if (usage) {
        usage->all = all;
        usage->timer = loop_timer_new(all->d->loop, on_timer, usage);
        if (usage->timer && loop_timer_arm(usage->timer, SAMPLE_MS) == 0)
            return usage;
        loop_timer_free(usage->timer);
    }
    free(usage);
    return NULL;
}

void usage_free(struct usage *usage)
{
    if (!usage)
        return;
    dbq_forget(usage->all->d->db, usage);
    loop_timer_free(usage->timer);
    free(usage);
}

void usage_measured(struct usage_sample *sample, uint64_t cpu_us)
{
    int64_t now_ms = clock_mono_ms();
    int64_t passed_ms = now_ms - sample->at_ms;

    /* Between two samples a failed execution asks, too; so short a time tells nothing. */
    if (sample->at_ms > 0 && passed_ms < SAMPLE_MS * 9 / 10)
        return;
    if (sample->at_ms > 0 && cpu_us > sample->cpu_us &&
        cpu_us - sample->cpu_us >= (uint64_t)passed_ms * ACTIVE_US_A_MS)
        sample->active_ms = now_ms;
    sample->at_ms = now_ms;
    sample->cpu_us = cpu_us;
}
