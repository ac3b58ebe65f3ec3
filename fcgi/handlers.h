/* The handlers that routes.def names, one file a resource. Each answers the exchange, or marks it
 * to be handed over, or fails with the error to be answered. */
#ifndef PADDOCK_FCGI_HANDLERS_H
#define PADDOCK_FCGI_HANDLERS_H

#include "fcgi/exchange.h"

/* health.c */
int health_plain(struct exchange *x, struct error *err);
int health_full(struct exchange *x, struct error *err);
/* sandboxes.c */
int sandboxes_create(struct exchange *x, struct error *err);
int sandboxes_list(struct exchange *x, struct error *err);
int sandboxes_get(struct exchange *x, struct error *err);
int sandboxes_update(struct exchange *x, struct error *err);
int sandboxes_delete(struct exchange *x, struct error *err);
/* executions.c */
int executions_create(struct exchange *x, struct error *err);
int executions_list(struct exchange *x, struct error *err);
int executions_get(struct exchange *x, struct error *err);
int executions_cancel(struct exchange *x, struct error *err);
/* projects.c */
int projects_get(struct exchange *x, struct error *err);
int projects_put(struct exchange *x, struct error *err);
/* usage.c */
int usage_get(struct exchange *x, struct error *err);
/* audit.c */
int audit_list(struct exchange *x, struct error *err);

#endif
