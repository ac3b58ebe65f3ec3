/*
 * The prefork manager: binds the listening socket, keeps web.children handler
 * processes alive, replaces them when they die, are worn out or stuck, and obeys
 * SIGTERM (finish and end) and SIGHUP (reload by executing itself anew, keeping
 * the socket). It never touches a request.
 */
#ifndef PADDOCK_FCGI_MANAGER_H
#define PADDOCK_FCGI_MANAGER_H

#include "common/config.h"
#include "common/error.h"
#include "common/log.h"

struct manager_options {
    const struct config *cfg;
    const char *config_path; /* NULL: the default path */
    const struct log *log;
    char *const *argv; /* for the new image at a reload */
};

/* Runs until it is told to end. Returns 0, or -1 with an error when it could not start. */
int manager_run(const struct manager_options *options, struct error *err)
    __attribute__((warn_unused_result));

#endif
