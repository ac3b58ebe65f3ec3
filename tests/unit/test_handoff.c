/* The hand-off message: reads back as written; anything else, field by field, is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/handoff.h"
#include "common/json.h"

#define SANDBOX "00011111-2222-4333-8444-555555555555"
#define EXECUTION "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
#define REQUEST "12345678-9abc-4def-8123-456789abcdef"

static struct handoff sample(void)
{
    return (struct handoff){.wait = HANDOFF_EXECUTION_ENDED,
                            .id = EXECUTION,
                            .sandbox_id = SANDBOX,
                            .request_id = REQUEST,
                            .token_id = "0123456789abcdef",
                            .fcgi_request_id = 1,
                            .wait_ms = 30000,
                            .status_done = 201,
                            .status_pending = 202,
                            .replayed = true,
                            .head_only = false,
                            .location = "/api/v1/projects/p/sandboxes/" SANDBOX};
}

static void assert_equal(const struct handoff *a, const struct handoff *b)
{
    ck_assert_int_eq(a->wait, b->wait);
    ck_assert_str_eq(a->id, b->id);
    ck_assert_str_eq(a->sandbox_id, b->sandbox_id);
    ck_assert_str_eq(a->request_id, b->request_id);
    ck_assert_str_eq(a->token_id, b->token_id);
    ck_assert_uint_eq(a->fcgi_request_id, b->fcgi_request_id);
    ck_assert_int_eq(a->wait_ms, b->wait_ms);
    ck_assert_int_eq(a->status_done, b->status_done);
    ck_assert_int_eq(a->status_pending, b->status_pending);
    ck_assert_int_eq(a->replayed, b->replayed);
    ck_assert_int_eq(a->head_only, b->head_only);
    ck_assert_str_eq(a->location, b->location);
}

static void round_trip(const struct handoff *msg)
{
    char text[HANDOFF_MAX];
    struct error err = ERROR_INIT;
    struct handoff back;
    int len = handoff_encode(msg, text, sizeof(text), &err);

    ck_assert_msg(len > 0, "%s", err.detail);
    ck_assert_int_eq(handoff_decode(text, (size_t)len, &back, &err), 0);
    assert_equal(msg, &back);
}

START_TEST(a_message_reads_back)
{
    struct handoff msg = sample();

    round_trip(&msg);
    msg.wait = HANDOFF_SANDBOX_READY;
    strcpy(msg.id, SANDBOX);
    msg.fcgi_request_id = UINT16_MAX;
    msg.wait_ms = 0;
    msg.status_done = 200;
    msg.status_pending = 200;
    msg.replayed = false;
    msg.head_only = true;
    msg.location[0] = '\0';
    round_trip(&msg);
    msg.wait = HANDOFF_SANDBOX_ENDED;
    msg.wait_ms = 300000;
    memset(msg.location, '"', sizeof(msg.location) - 1); /* the longest when escaped */
    msg.location[sizeof(msg.location) - 1] = '\0';
    round_trip(&msg);
}
END_TEST

static void refuse_encoding(const struct handoff *msg, const char *field)
{
    char text[HANDOFF_MAX];
    struct error err = ERROR_INIT;

    ck_assert_int_eq(handoff_encode(msg, text, sizeof(text), &err), -1);
    ck_assert_str_eq(err.field, field);
}

START_TEST(what_would_be_refused_is_not_sent)
{
    struct handoff msg = sample();
    char text[16];
    struct error err = ERROR_INIT;

    ck_assert_int_eq(handoff_encode(&msg, text, sizeof(text), &err), -1);
    ck_assert_int_ne(err.code, ERR_NONE);
    msg.wait_ms = 300001;
    refuse_encoding(&msg, "waitMs");
    msg.wait_ms = -1;
    refuse_encoding(&msg, "waitMs");
    msg = sample();
    msg.id[0] = 'A';
    refuse_encoding(&msg, "id");
    msg = sample();
    msg.wait = HANDOFF_SANDBOX_READY; /* of another sandbox */
    refuse_encoding(&msg, "sandboxId");
    msg = sample();
    msg.fcgi_request_id = 0;
    refuse_encoding(&msg, "fcgiRequestId");
    msg = sample();
    msg.status_done = 500;
    refuse_encoding(&msg, "statusDone");
    msg = sample();
    strcpy(msg.location, "/a\r\nX: y");
    refuse_encoding(&msg, "location");
}
END_TEST

static json_t *sample_json(void)
{
    struct handoff msg = sample();
    char text[HANDOFF_MAX];
    struct error err = ERROR_INIT;
    int len = handoff_encode(&msg, text, sizeof(text), &err);

    ck_assert_int_gt(len, 0);
    json_t *json = json_loadb(text, (size_t)len, 0, NULL);
    ck_assert_ptr_nonnull(json);
    return json;
}

static void refuse_text(const char *text, size_t len)
{
    struct error err = ERROR_INIT;
    struct handoff msg;

    ck_assert_msg(handoff_decode(text, len, &msg, &err) == -1, "accepted: %.*s", (int)len, text);
    ck_assert_int_eq(err.code, ERR_PROTOCOL);
    ck_assert_str_ne(err.detail, "");
}

START_TEST(each_field_is_checked)
{
    static const struct {
        const char *field;
        const char *value; /* JSON, in an array; NULL: left out */
    } cases[] = {
        {"wait", NULL},
        {"wait", "[\"forever\"]"},
        {"wait", "[\"\"]"},
        {"wait", "[0]"},
        {"id", NULL},
        {"id", "[\"\"]"},
        {"id", "[\"aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeee\"]"},
        {"id", "[\"aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeeee\"]"},
        {"id", "[\"AAAAAAAA-bbbb-4ccc-8ddd-eeeeeeeeeeee\"]"},
        {"id", "[\"../../../../../../etc/passwd/aaaaaaa\"]"},
        {"sandboxId", NULL},
        {"sandboxId", "[\"x\"]"},
        {"sandboxId", "[null]"},
        {"requestId", NULL},
        {"requestId", "[\"x\\r\\nSet-Cookie: a=b\"]"},
        {"tokenId", NULL},
        {"tokenId", "[\"0123456789abcde\"]"},
        {"tokenId", "[\"0123456789abcdef0\"]"},
        {"tokenId", "[\"0123456789ABCDEF\"]"},
        {"tokenId", "[\"{0123456789abcd,\"]"},
        {"fcgiRequestId", NULL},
        {"fcgiRequestId", "[0]"},
        {"fcgiRequestId", "[-1]"},
        {"fcgiRequestId", "[65536]"},
        {"fcgiRequestId", "[\"1\"]"},
        {"waitMs", NULL},
        {"waitMs", "[-1]"},
        {"waitMs", "[300001]"},
        {"waitMs", "[9223372036854775807]"},
        {"statusDone", NULL},
        {"statusDone", "[404]"},
        {"statusDone", "[4294967496]"},
        {"statusPending", "[99]"},
        {"statusPending", "[true]"},
        {"replayed", NULL},
        {"replayed", "[1]"},
        {"headOnly", NULL},
        {"headOnly", "[\"false\"]"},
        {"location", NULL},
        {"location", "[\"/a b\"]"},
        {"location", "[\"/\\u00e9\"]"},
        {"location", "[\"/\\n\"]"},
        {"location", "[7]"},
        {"unknown", "[1]"},
        {"location", "[{\"a\":{}}]"},
    };
    _cleanup_json_ json_t *json = sample_json();
    _cleanup_json_ json_t *wrapped = NULL;

    if (cases[_i].value) {
        wrapped = json_loads(cases[_i].value, 0, NULL);
        ck_assert_ptr_nonnull(wrapped);
        json_object_set(json, cases[_i].field, json_array_get(wrapped, 0));
    } else {
        ck_assert_int_eq(json_object_del(json, cases[_i].field), 0);
    }
    _cleanup_free_ char *text = json_dumps(json, JSON_COMPACT);
    ck_assert_ptr_nonnull(text);
    refuse_text(text, strlen(text));
}
END_TEST

START_TEST(a_location_that_does_not_fit_is_refused)
{
    _cleanup_json_ json_t *json = sample_json();
    char location[257];

    memset(location, 'x', 256);
    location[256] = '\0';
    json_object_set_new(json, "location", json_string(location));
    _cleanup_free_ char *text = json_dumps(json, JSON_COMPACT);
    refuse_text(text, strlen(text));
}
END_TEST

START_TEST(cut_doubled_and_oversize_messages_are_refused)
{
    struct handoff msg = sample();
    char text[HANDOFF_MAX + 1];
    struct error err = ERROR_INIT;
    size_t len = (size_t)handoff_encode(&msg, text, HANDOFF_MAX, &err);

    for (size_t cut = 0; cut < len; cut++)
        refuse_text(text, cut);
    text[len] = '{';
    refuse_text(text, len + 1);
    memset(text + len, ' ', sizeof(text) - len);
    ck_assert_int_eq(handoff_decode(text, HANDOFF_MAX, &msg, &err), 0);
    refuse_text(text, HANDOFF_MAX + 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("handoff");
    TCase *tc = tcase_create("message");

    tcase_add_test(tc, a_message_reads_back);
    tcase_add_test(tc, what_would_be_refused_is_not_sent);
    tcase_add_loop_test(tc, each_field_is_checked, 0, 40);
    tcase_add_test(tc, a_location_that_does_not_fit_is_refused);
    tcase_add_test(tc, cut_doubled_and_oversize_messages_are_refused);
    suite_add_tcase(suite, tc);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
