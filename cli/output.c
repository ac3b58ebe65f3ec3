/*
 * Printing for people and for programs. Values come from the service and may hold
 * anything, so control characters are shown escaped on the human form: a label
 * must not drive the reader's terminal.
 */
#include "cli/output.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"

/* Type OIDs of Postgres's own catalogue (src/include/catalog/pg_type.dat). */
enum {
    OID_BOOL = 16,
    OID_INT8 = 20,
    OID_INT2 = 21,
    OID_INT4 = 23,
    OID_JSON = 114,
    OID_JSONB = 3802
};

static json_t *cell(const PGresult *res, int row, int column)
{
    const char *text = PQgetvalue(res, row, column);

    if (PQgetisnull(res, row, column))
        return json_null();
    switch (PQftype(res, column)) {
    case OID_BOOL:
        return json_boolean(text[0] == 't');
    case OID_INT2:
    case OID_INT4:
    case OID_INT8:
        return json_integer(strtoll(text, NULL, 10));
    case OID_JSON:
    case OID_JSONB:
        return json_loads(text, JSON_DECODE_ANY, NULL);
    default:
        return json_string(text);
    }
}

/* created_at -> createdAt: the contract's spelling, for what comes from the database too. */
static void camel_case(const char *column, char *out, size_t size)
{
    size_t used = 0;

    for (; *column != '\0' && used + 1 < size; column++) {
        if (column[0] == '_' && column[1] >= 'a' && column[1] <= 'z')
            out[used++] = (char)(*++column - 'a' + 'A');
        else
            out[used++] = *column;
    }
    out[used] = '\0';
}

json_t *output_rows(const PGresult *res)
{
    json_t *rows = json_array();

    for (int row = 0; row < PQntuples(res); row++) {
        json_t *object = json_object();

        for (int column = 0; column < PQnfields(res); column++) {
            char name[64]; /* NAMEDATALEN of Postgres */

            camel_case(PQfname(res, column), name, sizeof(name));
            json_object_set_new(object, name, cell(res, row, column));
        }
        json_array_append_new(rows, object);
    }
    return rows;
}

static void print_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
    (void)putchar('\n');
}

/* Appends the text with control characters as \xNN. */
static void append_shown(struct buf *out, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (*p < 0x20 || *p == 0x7f)
            buf_printf(out, "\\x%02x", *p);
        else
            buf_append(out, p, 1);
    }
}

static void append_value(struct buf *out, const json_t *value)
{
    if (value == NULL || json_is_null(value)) {
        buf_append_str(out, "-");
    } else if (json_is_string(value)) {
        append_shown(out, json_string_value(value));
    } else {
        _cleanup_free_ char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

        append_shown(out, text != NULL ? text : "?");
    }
}

static const json_t *member(const json_t *object, const char *path)
{
    char name[64];
    size_t len = strcspn(path, ".");

    if (len >= sizeof(name))
        return NULL;
    memcpy(name, path, len);
    name[len] = '\0';
    object = json_object_get(object, name);
    return path[len] == '.' && object != NULL ? member(object, path + len + 1) : object;
}

void output_table(const struct cli *cli, const json_t *array, const char *const columns[])
{
    size_t count = 0;
    size_t width[16] = {0};

    if (cli->json) {
        print_json(array);
        return;
    }
    while (count < ARRAY_LEN(width) && columns[count] != NULL)
        count++;
    /* Two passes over the same cells: measure, then print. */
    for (int pass = 0; pass < 2; pass++) {
        for (size_t row = 0; row <= json_array_size(array); row++) {
            for (size_t c = 0; c < count; c++) {
                _cleanup_buf_ struct buf text = BUF_INIT(0);

                if (row == 0)
                    buf_append_str(&text, columns[c]);
                else
                    append_value(&text, member(json_array_get(array, row - 1), columns[c]));
                if (text.len > width[c])
                    width[c] = text.len;
                if (pass == 1)
                    printf("%-*s%s", c + 1 < count ? (int)width[c] : 0, buf_cstr(&text),
                           c + 1 < count ? "  " : "\n");
            }
        }
    }
}

void output_object(const struct cli *cli, const json_t *object)
{
    const char *name;
    const json_t *value;
    int width = 0;

    if (cli->json) {
        print_json(object);
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if ((int)strlen(name) > width)
            width = (int)strlen(name);
    }
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        _cleanup_buf_ struct buf text = BUF_INIT(0);

        append_value(&text, value);
        printf("%-*s  %s\n", width, name, buf_cstr(&text));
    }
}

/* Spreadsheets run what begins with one of = + - @; a quote before it keeps it text. */
static void append_csv(struct buf *out, const json_t *value)
{
    _cleanup_buf_ struct buf text = BUF_INIT(0);
    const char *at;

    if (value == NULL || json_is_null(value))
        return;
    append_value(&text, value);
    at = buf_cstr(&text);
    if (at == NULL)
        return;
    buf_append_str(out, "\"");
    if (json_is_string(value) && strchr("=+-@", at[0]) != NULL)
        buf_append_str(out, "'");
    for (; *at != '\0'; at++) {
        if (*at == '"')
            buf_append_str(out, "\"");
        buf_append(out, at, 1);
    }
    buf_append_str(out, "\"");
}

void output_csv(const json_t *array, const char *const columns[])
{
    size_t index;
    const json_t *row;

    for (size_t c = 0; columns[c] != NULL; c++)
        printf("%s%s", c > 0 ? "," : "", columns[c]);
    (void)fputs("\r\n", stdout);
    json_array_foreach(array, index, row)
    {
        _cleanup_buf_ struct buf line = BUF_INIT(0);

        for (size_t c = 0; columns[c] != NULL; c++) {
            if (c > 0)
                buf_append_str(&line, ",");
            append_csv(&line, member(row, columns[c]));
        }
        printf("%s\r\n", line.len > 0 ? buf_cstr(&line) : "");
    }
}
