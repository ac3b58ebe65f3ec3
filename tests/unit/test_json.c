/*
 * Strict JSON from strangers: what is refused, that the refusal says where, and
 * that it never repeats a value. Then the getters of request fields.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/json.h"

static const struct json_limits limits = {
    .bytes = 1 << 20, .depth = JSON_DEFAULT_DEPTH, .elements = JSON_DEFAULT_ELEMENTS};

/* Parses a copy of exactly len bytes without a NUL behind them. */
static json_t *parse_bytes(const char *text, size_t len, struct error *err)
{
    char *exact = malloc(len > 0 ? len : 1);
    json_t *json;

    ck_assert_ptr_nonnull(exact);
    memcpy(exact, text, len);
    json = json_parse_object(exact, len, &limits, err);
    free(exact);
    return json;
}

static json_t *parse(const char *text)
{
    struct error err = ERROR_INIT;
    json_t *json = parse_bytes(text, strlen(text), &err);

    ck_assert_msg(json != NULL, "%s refused: %s", text, err.detail);
    return json;
}

static void refuse_bytes(const char *text, size_t len, const char *detail, const char *field)
{
    struct error err = ERROR_INIT;

    ck_assert_msg(parse_bytes(text, len, &err) == NULL, "%s was accepted", text);
    ck_assert_int_eq(err.code, ERR_INVALID_JSON);
    ck_assert_msg(strstr(err.detail, detail) != NULL, "%s: %s", text, err.detail);
    ck_assert_str_eq(err.field, field);
    ck_assert_msg(strstr(err.detail, "SECRET") == NULL, "a value leaked: %s", err.detail);
}

static const struct {
    const char *text;
    const char *detail; /* part of it */
    const char *field;
} refused[] = {
    /* no object */
    {"", "nothing", ""},
    {" \n\t ", "nothing", ""},
    {"[]", "not an object", ""},
    {"[{}]", "not an object", ""},
    {"\"SECRET\"", "not an object", ""},
    {"12", "not an object", ""},
    {"null", "not an object", ""},
    {"\xef\xbb\xbf{}", "not an object", ""},
    /* grammar */
    {"{", "too early", ""},
    {"{\"a\"", "too early", "a"},
    {"{\"a\":1", "too early", "a"},
    {"{\"a\":{\"b\":[1,2", "too early", "a.b[1]"},
    {"{\"a\":\"SECRET", "too early", "a"},
    {"{\"a\":\"SECRET\\", "not valid JSON", "a"},
    {"{\"a\":1}x", "follows", ""},
    {"{\"a\":1} {}", "follows", ""},
    {"{\"a\":1,}", "not valid JSON", ""},
    {"{a:1}", "not valid JSON", ""},
    {"{'a':1}", "not valid JSON", ""},
    {"{\"a\":SECRET}", "not valid JSON", "a"},
    {"{\"a\":True}", "not valid JSON", "a"},
    {"{\"a\":NaN}", "not valid JSON", "a"},
    {"{\"a\":Infinity}", "not valid JSON", "a"},
    {"{\"a\":01}", "not valid JSON", "a"},
    {"{\"a\":+1}", "not valid JSON", "a"},
    {"{\"a\":-}", "not valid JSON", "a"},
    {"{\"a\":0x10}", "not valid JSON", "a"},
    {"{\"a\":[1 2]}", "not valid JSON", "a[0]"},
    {"{\"a\":\"\\xSECRET\"}", "not valid JSON", "a"},
    {"{\"a\":\"\tSECRET\"}", "not valid JSON", "a"},
    {"{\"a\":\"\\ud800SECRET\"}", "not valid JSON", "a"},
    {"{\"a\":1}}", "follows", ""},
    {"{\"a\":[1}]", "not valid JSON", "a"},
    {"{/* c */}", "not valid JSON", ""},
    {"{\"a\":\n  {\"b\":\n  oops}}", "line 3", "a.b"},
    /* names given twice, also when spelt differently */
    {"{\"a\":1,\"a\":1}", "twice", "a"},
    {"{\"a\":1,\"\\u0061\":1}", "twice", "\\u0061"},
    {"{\"x\":{\"env\":1,\"b\":{},\"env\":2}}", "twice", "x.env"},
    /* numbers */
    {"{\"ttlSeconds\":3600.0}", "integer", "ttlSeconds"},
    {"{\"a\":1e5}", "integer", "a"},
    {"{\"a\":1E5}", "integer", "a"},
    {"{\"a\":1e-400}", "integer", "a"},
    {"{\"a\":1e400}", "integer", "a"},
    {"{\"a\":-0.0}", "integer", "a"},
    {"{\"a\":{\"b\":[0,{\"c\":0.5}]}}", "integer", "a.b[1].c"},
    {"{\"a\":9223372036854775808}", "64 bits", "a"},
    {"{\"a\":-9223372036854775809}", "64 bits", "a"},
    {"{\"a\":1,2.5:3}", "integer", ""},
    {"{\"a\":[1,99999999999999999999999999999999999]}", "64 bits", "a[1]"},
    /* NUL */
    {"{\"env\":{\"A\":\"SECRET\\u0000\"}}", "NUL", "env.A"},
    {"{\"a\":[\"x\",\"SECRET\\\\\\u0000\"]}", "NUL", "a[1]"},
    {"{\"env\":{\"A\\u0000B\":\"SECRET\"}}", "NUL", "env.A"},
    /* invalid UTF-8: overlong, surrogate, cut, beyond U+10FFFF, lone continuation */
    {"{\"a\":\"\xc0\x80\"}", "UTF-8 at line 1, column 7", ""},
    {"{\"a\":\"\xed\xa0\x80\"}", "UTF-8", ""},
    {"{\"a\":\"\xe2\x82\"}", "UTF-8", ""},
    {"{\"a\":\"\xf4\x90\x80\x80\"}", "UTF-8", ""},
    {"{\"a\":\"x\x80\"}", "UTF-8", ""},
    {"{\"\xff\":1}", "UTF-8", ""},
};

START_TEST(what_is_not_strict_is_refused_by_name_and_place)
{
    refuse_bytes(refused[_i].text, strlen(refused[_i].text), refused[_i].detail, refused[_i].field);
}
END_TEST

START_TEST(raw_nul_bytes_are_refused)
{
    refuse_bytes("{\"a\":\"x\0y\"}", 11, "NUL", "a");
    refuse_bytes("{\"a\0b\":1}", 9, "NUL", "a");
    refuse_bytes("{\"a\":1}\0", 8, "NUL", "");
    refuse_bytes("{\0}", 3, "NUL", "");
}
END_TEST

START_TEST(good_texts_are_read)
{
    _cleanup_json_ json_t *json =
        parse(" {\"min\":-9223372036854775808,\"max\":9223372036854775807,"
              "\"zero\":-0,\"esc\":\"\\\\u0000 \\\" \\ud83d\\ude00 \xc3\xa9\","
              "\"\":null,\"list\":[true,false,[],{}]}\r\n");

    ck_assert_int_eq(json_integer_value(json_object_get(json, "min")), INT64_MIN);
    ck_assert_int_eq(json_integer_value(json_object_get(json, "max")), INT64_MAX);
    ck_assert_int_eq(json_integer_value(json_object_get(json, "zero")), 0);
    ck_assert_str_eq(json_string_value(json_object_get(json, "esc")),
                     "\\u0000 \" \xf0\x9f\x98\x80 \xc3\xa9");
    ck_assert_uint_eq(json_array_size(json_object_get(json, "list")), 4);
}
END_TEST

/* {"a":[[[…]]]} with `depth` containers in all */
static void nest(struct buf *text, unsigned depth)
{
    buf_append_str(text, "{\"a\":");
    for (unsigned i = 1; i < depth; i++)
        buf_append_str(text, "[");
    if (depth == 1)
        buf_append_str(text, "1");
    for (unsigned i = 1; i < depth; i++)
        buf_append_str(text, "]");
    buf_append_str(text, "}");
    ck_assert_int_eq(text->overflowed, 0);
}

START_TEST(depth_is_bounded)
{
    static const unsigned too_deep[] = {JSON_DEFAULT_DEPTH + 1, 2047, 2049, 100000};
    struct error err = ERROR_INIT;

    for (unsigned depth = 1; depth <= JSON_DEFAULT_DEPTH; depth++) {
        _cleanup_buf_ struct buf text = BUF_INIT(0);
        _cleanup_json_ json_t *json = NULL;

        nest(&text, depth);
        json = parse_bytes(text.data, text.len, &err);
        ck_assert_ptr_nonnull(json);
    }
    for (size_t i = 0; i < ARRAY_LEN(too_deep); i++) {
        _cleanup_buf_ struct buf text = BUF_INIT(0);

        nest(&text, too_deep[i]);
        ck_assert_ptr_null(parse_bytes(text.data, text.len, &err));
        ck_assert_int_eq(err.code, ERR_INVALID_JSON);
        ck_assert_ptr_nonnull(strstr(err.detail, "deeper than 16"));
    }
    /* unclosed, and closed too often */
    _cleanup_buf_ struct buf text = BUF_INIT(0);
    for (int i = 0; i < 50000; i++)
        buf_append_str(&text, "{\"a\":");
    ck_assert_ptr_null(parse_bytes(text.data, text.len, &err));
    ck_assert_int_eq(err.code, ERR_INVALID_JSON);
    refuse_bytes("{\"a\":1}]]]]]", 12, "follows", "");
}
END_TEST

START_TEST(values_are_counted)
{
    static const struct json_limits few = {.bytes = 100, .depth = 3, .elements = 4};
    struct error err = ERROR_INIT;
    json_t *json = json_parse_object("{\"a\":[1,\"2\"]}", 13, &few, &err);

    ck_assert_ptr_nonnull(json);
    json_decref(json);
    ck_assert_ptr_null(json_parse_object("{\"a\":[1,\"2\",{}]}", 16, &few, &err));
    ck_assert_int_eq(err.code, ERR_INVALID_JSON);
    ck_assert_ptr_nonnull(strstr(err.detail, "more than 4 values"));
    ck_assert_ptr_null(json_parse_object("{\"a\":[1,true,null]}", 19, &few, &err));
    ck_assert_ptr_nonnull(strstr(err.detail, "more than 4 values"));
}
END_TEST

START_TEST(size_is_bounded)
{
    static const struct json_limits small = {.bytes = 7, .depth = 3, .elements = 4};
    struct error err = ERROR_INIT;
    json_t *json = json_parse_object("{\"a\":1}", 7, &small, &err);

    ck_assert_ptr_nonnull(json);
    json_decref(json);
    ck_assert_ptr_null(json_parse_object("{\"a\":1} ", 8, &small, &err));
    ck_assert_int_eq(err.code, ERR_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(err.detail, "at most 7"));
}
END_TEST

START_TEST(long_paths_are_cut_between_characters)
{
    struct error err = ERROR_INIT;
    _cleanup_buf_ struct buf text = BUF_INIT(0);

    buf_append_str(&text, "{\"x");
    for (int i = 0; i < 200; i++)
        buf_append_str(&text, "\xc3\xa9");
    buf_append_str(&text, "\":{\"b\":1.5}}");
    ck_assert_ptr_null(parse_bytes(text.data, text.len, &err));
    ck_assert_int_eq(err.code, ERR_INVALID_JSON);
    ck_assert_uint_eq(strlen(err.field), sizeof(err.field) - 1);
    ck_assert_uint_eq((unsigned char)err.field[sizeof(err.field) - 2], 0xa9);
}
END_TEST

START_TEST(every_cut_and_every_changed_byte_is_survived)
{
    static const char good[] =
        "{\"cmd\":[\"a\",\"b\\n\\u00e9\"],\"n\":-12,\"o\":{\"k\":null,\"t\":true}}";
    static const char bytes[] = "\0\"\\{}[],:-.eE0u \x7f\x80\xc3\xff";

    for (size_t len = 0; len < sizeof(good) - 1; len++) {
        struct error err = ERROR_INIT;
        ck_assert_ptr_null(parse_bytes(good, len, &err));
        ck_assert_int_eq(err.code, ERR_INVALID_JSON);
    }
    for (size_t at = 0; at < sizeof(good) - 1; at++) {
        for (size_t b = 0; b < sizeof(bytes) - 1; b++) {
            struct error err = ERROR_INIT;
            _cleanup_json_ json_t *json = NULL;
            char text[sizeof(good)];

            memcpy(text, good, sizeof(good));
            text[at] = bytes[b];
            json = parse_bytes(text, sizeof(good) - 1, &err);
            ck_assert(json || err.code == ERR_INVALID_JSON);
        }
    }
}
END_TEST

START_TEST(the_canonical_form_knows_no_order)
{
    _cleanup_json_ json_t *a = parse("{\"b\": [1, 2], \"a\": {\"y\": \"\\u00e9\", \"x\": null}}");
    _cleanup_json_ json_t *b = parse("{\"a\":{\"x\":null,\"y\":\"\xc3\xa9\"},\"b\":[1,2]}");
    _cleanup_json_ json_t *c = parse("{\"a\":{\"x\":null,\"y\":\"\xc3\xa9\"},\"b\":[2,1]}");
    _cleanup_free_ char *text_a = json_canonical(a);
    _cleanup_free_ char *text_b = json_canonical(b);
    _cleanup_free_ char *text_c = json_canonical(c);

    ck_assert_str_eq(text_a, "{\"a\":{\"x\":null,\"y\":\"\xc3\xa9\"},\"b\":[1,2]}");
    ck_assert_str_eq(text_a, text_b);
    ck_assert_str_ne(text_a, text_c);
}
END_TEST

/* --- fields ------------------------------------------------------------------------------- */

START_TEST(unknown_fields_are_named)
{
    static const char *const names[] = {"cmd", "cwd", NULL};
    struct error err = ERROR_INIT;
    _cleanup_json_ json_t *good = parse("{\"cwd\":1,\"cmd\":2}");
    _cleanup_json_ json_t *bad = parse("{\"cmd\":1,\"Cwd\":\"SECRET\",\"zzz\":1}");
    _cleanup_json_ json_t *odd = parse("{\"a\\nb\":1}");

    ck_assert_int_eq(json_only_fields(good, names, &err), 0);
    ck_assert_int_eq(json_only_fields(bad, names, &err), -1);
    ck_assert_int_eq(err.code, ERR_UNKNOWN_FIELD);
    ck_assert_str_eq(err.field, "Cwd");
    ck_assert_ptr_null(strstr(err.detail, "SECRET"));
    ck_assert_int_eq(json_only_fields(odd, names, &err), -1);
    ck_assert_str_eq(err.field, "a?b");
}
END_TEST

START_TEST(integers_keep_their_bounds)
{
    struct error err = ERROR_INIT;
    _cleanup_json_ json_t *json = parse("{\"n\":5,\"s\":\"5\",\"z\":null,\"t\":true}");
    int64_t value = 77;

    ck_assert_int_eq(json_get_int(json, "absent", 0, 9, &value, &err), 0);
    ck_assert_int_eq(value, 77);
    ck_assert_int_eq(json_get_int(json, "n", 5, 5, &value, &err), 1);
    ck_assert_int_eq(value, 5);
    value = 77;
    ck_assert_int_eq(json_get_int(json, "n", 6, 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_ptr_nonnull(strstr(err.detail, "at least 6"));
    ck_assert_int_eq(json_get_int(json, "n", 0, 4, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(err.detail, "at most 4"));
    ck_assert_str_eq(err.field, "n");
    ck_assert_int_eq(json_get_int(json, "s", 0, 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_int_eq(json_get_int(json, "z", 0, 9, &value, &err), -1);
    ck_assert_int_eq(json_get_int(json, "t", 0, 9, &value, &err), -1);
    ck_assert_int_eq(value, 77);
    ck_assert(json_is_null_member(json, "z"));
    ck_assert(!json_is_null_member(json, "n"));
    ck_assert(!json_is_null_member(json, "absent"));
}
END_TEST

START_TEST(booleans_are_true_or_false_only)
{
    struct error err = ERROR_INIT;
    _cleanup_json_ json_t *json =
        parse("{\"t\":true,\"f\":false,\"n\":1,\"s\":\"true\",\"z\":null}");
    bool value = false;

    ck_assert_int_eq(json_get_bool(json, "absent", &value, &err), 0);
    ck_assert_int_eq(json_get_bool(json, "t", &value, &err), 1);
    ck_assert(value);
    ck_assert_int_eq(json_get_bool(json, "n", &value, &err), -1);
    ck_assert_int_eq(json_get_bool(json, "s", &value, &err), -1);
    ck_assert_int_eq(json_get_bool(json, "z", &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert(value);
    ck_assert_int_eq(json_get_bool(json, "f", &value, &err), 1);
    ck_assert(!value);
}
END_TEST

START_TEST(strings_are_counted_in_bytes)
{
    struct error err = ERROR_INIT;
    _cleanup_json_ json_t *json = parse("{\"s\":\"h\xc3\xa9!\",\"e\":\"\",\"n\":1}");
    const char *value = "untouched";

    ck_assert_int_eq(json_get_string(json, "absent", 9, &value, &err), 0);
    ck_assert_int_eq(json_get_string(json, "s", 3, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(err.detail, "at most 3"));
    ck_assert_int_eq(json_get_string(json, "n", 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_str_eq(value, "untouched");
    ck_assert_int_eq(json_get_string(json, "s", 4, &value, &err), 1);
    ck_assert_str_eq(value, "h\xc3\xa9!");
    ck_assert_int_eq(json_get_string(json, "e", 0, &value, &err), 1);
    ck_assert_str_eq(value, "");
}
END_TEST

START_TEST(string_maps_keep_each_limit)
{
    struct error err = ERROR_INIT;
    _cleanup_json_ json_t *json = parse("{\"env\":{\"AB\":\"xyz\",\"C\":\"\"},\"empty\":{},"
                                        "\"bad\":{\"A\":1},\"list\":[],\"noname\":{\"\":\"x\"}}");
    json_t *value = NULL;

    ck_assert_int_eq(json_get_string_map(json, "absent", 9, 9, 9, &value, &err), 0);
    ck_assert_int_eq(json_get_string_map(json, "env", 2, 2, 3, &value, &err), 1);
    ck_assert_ptr_eq(value, json_object_get(json, "env"));
    value = NULL;
    ck_assert_int_eq(json_get_string_map(json, "env", 1, 9, 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    ck_assert_str_eq(err.field, "env");
    ck_assert_int_eq(json_get_string_map(json, "env", 9, 1, 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    ck_assert_str_eq(err.field, "env.AB");
    ck_assert_int_eq(json_get_string_map(json, "env", 9, 9, 2, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_LIMIT_EXCEEDED);
    ck_assert_ptr_null(strstr(err.detail, "xyz"));
    ck_assert_int_eq(json_get_string_map(json, "bad", 9, 9, 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_str_eq(err.field, "bad.A");
    ck_assert_int_eq(json_get_string_map(json, "noname", 9, 9, 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_int_eq(json_get_string_map(json, "list", 9, 9, 9, &value, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_ptr_null(value);
    ck_assert_int_eq(json_get_string_map(json, "empty", 0, 0, 0, &value, &err), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json");
    TCase *tc = tcase_create("parse");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, what_is_not_strict_is_refused_by_name_and_place, 0,
                        (int)ARRAY_LEN(refused));
    tcase_add_test(tc, raw_nul_bytes_are_refused);
    tcase_add_test(tc, good_texts_are_read);
    tcase_add_test(tc, depth_is_bounded);
    tcase_add_test(tc, values_are_counted);
    tcase_add_test(tc, size_is_bounded);
    tcase_add_test(tc, long_paths_are_cut_between_characters);
    tcase_add_test(tc, every_cut_and_every_changed_byte_is_survived);
    tcase_add_test(tc, the_canonical_form_knows_no_order);
    suite_add_tcase(suite, tc);

    tc = tcase_create("fields");
    tcase_add_test(tc, unknown_fields_are_named);
    tcase_add_test(tc, integers_keep_their_bounds);
    tcase_add_test(tc, booleans_are_true_or_false_only);
    tcase_add_test(tc, strings_are_counted_in_bytes);
    tcase_add_test(tc, string_maps_keep_each_limit);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
