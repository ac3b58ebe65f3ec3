/* paddock sandbox …: sandboxes over REST. */
#include <stdio.h>
#include <string.h>

#include "cli/client.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/pairs.h"
#include "common/json.h"
#include "common/text.h"

/* Numbers of a create request and their option names. */
static const struct {
    const char *option;
    const char *field;
} numbers[] = {
    {"cpus", "cpus"}, {"memory-mb", "memoryMb"}, {"workspace-mb", "workspaceMb"},
    {"pids", "pids"}, {"ttl", "ttlSeconds"},     {"idle", "idleSeconds"},
};

static int set_numbers(struct cli *cli, const struct option_values values[], json_t *body)
{
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        int64_t number;

        if (values[i].count == 0)
            continue;
        if (text_parse_i64(values[i].at[0], 1, INT64_MAX, &number) != 0)
            return cli_usage(cli, "--%s wants a positive number", numbers[i].option);
        json_object_set_new(body, numbers[i].field, json_integer(number));
    }
    return 0;
}

int cmd_sandbox_create(struct cli *cli, int argc, char **argv)
{
    struct option_values none = {0}, template = {0}, env = {0}, labels = {0}, exclusive = {0},
                         wait = {0}, values[ARRAY_LEN(numbers)] = {0};
    const struct option_spec specs[] = {
        {numbers[0].option, false, false, &values[0]},
        {numbers[1].option, false, false, &values[1]},
        {numbers[2].option, false, false, &values[2]},
        {numbers[3].option, false, false, &values[3]},
        {numbers[4].option, false, false, &values[4]},
        {numbers[5].option, false, false, &values[5]},
        {"template", false, false, &template},
        {"env", true, false, &env},
        {"label", true, false, &labels},
        {"exclusive", false, true, &exclusive},
        {"wait", false, false, &wait},
    };
    _cleanup_json_ json_t *body = json_object();
    _cleanup_json_ json_t *answer = NULL;
    char path[64] = "~";
    int64_t seconds;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &none, NULL);

    if (status != 0)
        return status;
    if (none.count > 0)
        return cli_usage(cli, "sandbox create takes no operand");
    if (template.count > 0)
        json_object_set_new(body, "template", json_string(template.at[0]));
    if (exclusive.count > 0)
        json_object_set_new(body, "exclusive", json_true());
    if ((status = set_numbers(cli, values, body)) != 0 ||
        (status = pairs_set(cli, &env, "env", body)) != 0 ||
        (status = pairs_set(cli, &labels, "labels", body)) != 0)
        return status;
    if (wait.count > 0) {
        if (text_parse_i64(wait.at[0], 0, 300, &seconds) != 0)
            return cli_usage(cli, "--wait wants seconds from 0 to 300");
        (void)snprintf(path, sizeof(path), "~?wait=%lld", (long long)seconds);
    }
    answer = client_request(cli, "POST", path, body);
    if (answer == NULL)
        return cli_exit_status(&cli->err);
    output_object(cli, answer);
    return CLI_OK;
}

int cmd_sandbox_list(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"id", "state", "reason", "template", "createdAt", NULL};
    struct option_values none = {0}, state = {0}, template = {0}, labels = {0}, limit = {0};
    const struct option_spec specs[] = {
        {"state", false, false, &state},
        {"template", false, false, &template},
        {"label", true, false, &labels},
        {"limit", false, false, &limit},
    };
    _cleanup_buf_ struct buf path = BUF_INIT(65536);
    _cleanup_json_ json_t *answer = NULL;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &none, NULL);

    if (status != 0)
        return status;
    if (none.count > 0)
        return cli_usage(cli, "sandbox list takes no operand");
    buf_append_str(&path, "~?limit=");
    client_escape(&path, limit.count > 0 ? limit.at[0] : "50");
    pairs_query(&path, "state", option_value(&state));
    pairs_query(&path, "template", option_value(&template));
    for (size_t i = 0; i < labels.count; i++) {
        const char *equals = strchr(labels.at[i], '=');
        _cleanup_free_ char *name = NULL;

        if (equals == NULL ||
            asprintf(&name, "label.%.*s", (int)(equals - labels.at[i]), labels.at[i]) < 0)
            return cli_usage(cli, "--label wants KEY=VALUE");
        pairs_query(&path, name, equals + 1);
    }
    answer = client_request(cli, "GET", buf_cstr(&path), NULL);
    if (answer == NULL)
        return cli_exit_status(&cli->err);
    if (cli->json)
        output_object(cli, answer);
    else
        output_table(cli, json_object_get(answer, "items"), columns);
    return CLI_OK;
}

static json_t *one_sandbox(struct cli *cli, const char *method, const char *id, const json_t *body)
{
    _cleanup_buf_ struct buf path = BUF_INIT(4096);

    buf_append_str(&path, "~/");
    client_escape(&path, id);
    if (buf_cstr(&path) == NULL || path.overflowed) {
        error_set(&cli->err, ERR_NOT_FOUND, "that is no sandbox id");
        return NULL;
    }
    return client_request(cli, method, path.data, body);
}

/* "none" or seconds. */
static int set_lifetime(struct cli *cli, const struct option_values *values, const char *option,
                        const char *field, json_t *body)
{
    int64_t seconds;

    if (values->count == 0)
        return 0;
    if (strcmp(values->at[0], "none") == 0) {
        json_object_set_new(body, field, json_null());
        return 0;
    }
    if (text_parse_i64(values->at[0], 1, INT64_MAX, &seconds) != 0)
        return cli_usage(cli, "--%s wants seconds or none", option);
    json_object_set_new(body, field, json_integer(seconds));
    return 0;
}

int cmd_sandbox_update(struct cli *cli, int argc, char **argv)
{
    struct option_values ids = {0}, ttl = {0}, idle = {0}, labels = {0};
    const struct option_spec specs[] = {{"ttl", false, false, &ttl},
                                        {"idle", false, false, &idle},
                                        {"label", true, false, &labels}};
    _cleanup_json_ json_t *body = json_object();
    _cleanup_json_ json_t *answer = NULL;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &ids, NULL);

    if (status != 0)
        return status;
    if (ids.count != 1)
        return cli_usage(cli, "name one sandbox");
    if ((status = set_lifetime(cli, &ttl, "ttl", "ttlSeconds", body)) != 0 ||
        (status = set_lifetime(cli, &idle, "idle", "idleSeconds", body)) != 0 ||
        (status = pairs_set(cli, &labels, "labels", body)) != 0)
        return status;
    answer = one_sandbox(cli, "PATCH", ids.at[0], body);
    if (answer == NULL)
        return cli_exit_status(&cli->err);
    output_object(cli, answer);
    return CLI_OK;
}

int cmd_sandbox_show(struct cli *cli, int argc, char **argv)
{
    _cleanup_json_ json_t *answer = NULL;

    if (argc != 1)
        return cli_usage(cli, "name one sandbox");
    answer = one_sandbox(cli, "GET", argv[0], NULL);
    if (answer == NULL)
        return cli_exit_status(&cli->err);
    output_object(cli, answer);
    return CLI_OK;
}

int cmd_sandbox_rm(struct cli *cli, int argc, char **argv)
{
    _cleanup_json_ json_t *all = json_array();

    if (argc < 1)
        return cli_usage(cli, "name at least one sandbox");
    for (int i = 0; i < argc; i++) {
        json_t *answer = one_sandbox(cli, "DELETE", argv[i], NULL);

        if (answer == NULL) {
            error_prefix(&cli->err, "%s", argv[i]);
            return cli_exit_status(&cli->err);
        }
        if (!cli->json)
            printf("%s %s\n", argv[i], json_string_value(json_object_get(answer, "state")));
        json_array_append_new(all, answer);
    }
    if (cli->json)
        output_table(cli, all, (const char *const[]){NULL});
    return CLI_OK;
}
