/*
 * What a handler process holds for its whole life: configuration, log, its own
 * database connection. Made by child.c, lent to everything that answers a
 * request. One process serves one request at a time, so nothing here is locked.
 */
#ifndef PADDOCK_FCGI_APP_H
#define PADDOCK_FCGI_APP_H

#include "common/config.h"
#include "common/db.h"
#include "common/log.h"

struct app {
    const struct config *cfg; /* borrowed */
    struct db *db;            /* borrowed */
    struct log log;           /* its request_id is that of the request in hand */
};

#endif
