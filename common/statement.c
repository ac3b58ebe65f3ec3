/*
 * The table of sql/statements.def, read by the database modules of handlers,
 * daemon and command line. No other SQL text exists in the programs.
 */
#include "common/statement.h"

static const struct {
    const char *name;
    const char *text;
    int params;
} statements[] = {
#define STATEMENT(sym, params, text) [STMT_##sym] = {#sym, text, params},
#include "sql/statements.def"
#undef STATEMENT
};

#define STATEMENT(sym, params, text)                                                               \
    _Static_assert((params) <= STATEMENT_PARAMS_MAX, #sym " has too many parameters");
#include "sql/statements.def"
#undef STATEMENT

const char *statement_name(enum statement stmt)
{
    return statements[stmt].name;
}

const char *statement_text(enum statement stmt)
{
    return statements[stmt].text;
}

int statement_params(enum statement stmt)
{
    return statements[stmt].params;
}
