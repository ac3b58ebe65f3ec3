/*
 * The keeper's queue of reports. Called by keeper.c only.
 *
 * Must stay true: an end is told to every main until one has recorded it; a
 * report that cannot be kept makes this main as good as gone, for the next one
 * is told everything anew. Sockets are never queued, so none can leak here.
 */
#include "daemon/keeper/reports.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fdpass.h"

/* Ends that no main recorded; of older ones the reason is lost. A main records each within a
 * second, unless the database is away. */
#define ENDS_MAX 16384u

struct report_node {
    struct report_node *next;
    struct keeper_report report;
};

void reports_init(struct reports *reports)
{
    memset(reports, 0, sizeof(*reports));
    reports->sock = -1;
    reports->last = &reports->first;
    reports->last_end = &reports->ends;
}

static bool append(struct report_node ***last, const struct keeper_report *report)
{
    struct report_node *node = malloc(sizeof(*node));

    if (!node)
        return false;
    node->next = NULL;
    node->report = *report;
    **last = node;
    *last = &node->next;
    return true;
}

static void drop_first(struct report_node **first, struct report_node ***last)
{
    struct report_node *node = *first;

    *first = node->next;
    if (!*first)
        *last = first;
    free(node);
}

void reports_detach(struct reports *reports)
{
    while (reports->first)
        drop_first(&reports->first, &reports->last);
    reports->count = 0;
    if (reports->sock >= 0)
        close(reports->sock);
    reports->sock = -1;
    reports->failed = false;
}

void reports_attach(struct reports *reports, int sock)
{
    reports_detach(reports);
    reports->sock = sock;
}

void reports_clear(struct reports *reports)
{
    reports_detach(reports);
    while (reports->ends)
        drop_first(&reports->ends, &reports->last_end);
    reports->ends_count = 0;
}

void reports_add(struct reports *reports, const struct keeper_report *report)
{
    if (reports->sock < 0)
        return;
    if (append(&reports->last, report))
        reports->count++;
    else
        reports->failed = true;
}

void reports_add_end(struct reports *reports, const struct keeper_report *report)
{
    if (reports->ends_count == ENDS_MAX) {
        drop_first(&reports->ends, &reports->last_end);
        reports->ends_count--;
    }
    if (append(&reports->last_end, report))
        reports->ends_count++;
    reports_add(reports, report);
}

void reports_tell_ends(struct reports *reports)
{
    for (const struct report_node *node = reports->ends; node; node = node->next)
        reports_add(reports, &node->report);
}

void reports_forget(struct reports *reports, const char *id)
{
    for (struct report_node **at = &reports->ends; *at; at = &(*at)->next) {
        struct report_node *node = *at;

        if (strcmp(node->report.id, id) != 0)
            continue;
        *at = node->next;
        if (reports->last_end == &node->next)
            reports->last_end = at;
        reports->ends_count--;
        free(node);
        return;
    }
}

bool reports_flush(struct reports *reports, reports_guest guest, void *arg)
{
    if (reports->failed)
        return false;
    while (reports->first) {
        struct keeper_report *report = &reports->first->report;
        bool is_due = true;
        int fd = -1;
        struct error err = ERROR_INIT;

        if (report->event == KEEPER_STARTED || report->event == KEEPER_HELD)
            is_due = guest(arg, report, &fd);
        if (is_due && fdpass_send(reports->sock, report, sizeof(*report), fd, &err) < 0)
            return err.errno_value == EAGAIN || err.errno_value == ENOBUFS; /* EPIPE, ECONNRESET */
        drop_first(&reports->first, &reports->last);
        reports->count--;
    }
    return true;
}
