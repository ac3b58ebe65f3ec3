/* The table of SQL statements (sql/statements.def): the only SQL the programs send. */
#ifndef PADDOCK_COMMON_STATEMENT_H
#define PADDOCK_COMMON_STATEMENT_H

enum statement {
#define STATEMENT(sym, params, text) STMT_##sym,
#include "sql/statements.def"
#undef STATEMENT
    STMT_COUNT
};

/* No statement of the table has more parameters (asserted in statement.c). */
#define STATEMENT_PARAMS_MAX 16

const char *statement_name(enum statement stmt); /* the name it is prepared under */
const char *statement_text(enum statement stmt);
int statement_params(enum statement stmt);

#endif
