/* paddock exec: run a command or script in a sandbox, with its output and exit code as ours. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "cli/client.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/pairs.h"
#include "common/json.h"
#include "common/text.h"

#define FILE_MAX (16u << 20)

static json_t *file_text(struct cli *cli, const char *path)
{
    _cleanup_buf_ struct buf text = BUF_INIT(FILE_MAX);
    _cleanup_close_ int fd = strcmp(path, "-") == 0 ? dup(0) : open(path, O_RDONLY | O_CLOEXEC);
    char piece[65536];
    ssize_t got = 0;
    json_t *value;

    while (fd >= 0 && (got = read(fd, piece, sizeof(piece))) > 0) {
        if (buf_append(&text, piece, (size_t)got) != 0) {
            error_set(&cli->err, ERR_TOO_LARGE, "%s is over 16 MiB", path);
            return NULL;
        }
    }
    if (fd < 0 || got < 0) {
        error_set_errno(&cli->err, "read %s", path);
        return NULL;
    }
    value = json_stringn(text.data != NULL ? text.data : "", text.len);
    if (value == NULL)
        error_set(&cli->err, ERR_INVALID_FIELD, "%s is not UTF-8 text", path);
    return value;
}

/* Sets body[field] from a file named by an option; nothing when it is not given. */
static int set_file(struct cli *cli, const struct option_values *option, const char *field,
                    json_t *body)
{
    json_t *text;

    if (option->count == 0)
        return 0;
    text = file_text(cli, option->at[0]);
    if (text == NULL)
        return CLI_EXEC_FAILED;
    json_object_set_new(body, field, text);
    return 0;
}

/* Decodes into out (at least len bytes); the bytes that padding stands for are not counted. */
static size_t decode_base64(const char *text, size_t len, unsigned char *out)
{
    int got = len <= (size_t)FILE_MAX * 2
                  ? EVP_DecodeBlock(out, (const unsigned char *)text, (int)len)
                  : -1;

    if (got < 0)
        return 0;
    for (size_t i = len; i > 0 && text[i - 1] == '=' && got > 0; i--)
        got--;
    return (size_t)got;
}

/* Writes a stream of the answer as the bytes it was. */
static void write_stream(const json_t *answer, const char *name, FILE *out)
{
    const json_t *text = json_object_get(answer, name);
    const char *encoding =
        json_string_value(json_object_get(json_object_get(answer, "encoding"), name));
    const char *data = json_string_value(text);
    size_t len = json_string_length(text);
    _cleanup_free_ unsigned char *decoded = NULL;

    if (data == NULL || len == 0)
        return;
    if (encoding != NULL && strcmp(encoding, "base64") == 0) {
        decoded = malloc(len);
        len = decoded != NULL ? decode_base64(data, len, decoded) : 0;
        data = (const char *)decoded;
    }
    if (data != NULL)
        (void)fwrite(data, 1, len, out);
}

static int report(struct cli *cli, const json_t *answer)
{
    const json_t *code = json_object_get(answer, "exitCode");
    const char *state = json_string_value(json_object_get(answer, "state"));
    const char *error = json_string_value(json_object_get(answer, "error"));

    if (cli->json) {
        output_object(cli, answer);
    } else {
        write_stream(answer, "stdout", stdout);
        (void)fflush(stdout);
        write_stream(answer, "stderr", stderr);
        if (error != NULL)
            (void)fprintf(stderr, "paddock: %s\n", error);
    }
    if (json_is_integer(code))
        return (int)json_integer_value(code);
    if (!cli->json)
        (void)fprintf(stderr, "paddock: the execution is %s\n", state != NULL ? state : "unknown");
    return CLI_EXEC_FAILED;
}

int cmd_exec(struct cli *cli, int argc, char **argv)
{
    struct option_values ids = {0}, command = {0}, cwd = {0}, env = {0}, timeout = {0},
                         standard_input = {0}, language = {0}, code = {0};
    const struct option_spec specs[] = {
        {"cwd", false, false, &cwd},           {"env", true, false, &env},
        {"timeout", false, false, &timeout},   {"stdin", false, false, &standard_input},
        {"language", false, false, &language}, {"code", false, false, &code},
    };
    _cleanup_json_ json_t *body = json_object();
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_buf_ struct buf path = BUF_INIT(4096);
    int64_t timeout_ms;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &ids, &command);

    if (status != 0)
        return status;
    if (ids.count != 1 || (command.count > 0) == (code.count > 0) ||
        (language.count > 0) != (code.count > 0))
        return cli_usage(cli, "name one sandbox, and either -- and a command or --language and "
                              "--code");
    if (timeout.count > 0) {
        if (text_parse_i64(timeout.at[0], 1, INT64_MAX, &timeout_ms) != 0)
            return cli_usage(cli, "--timeout wants milliseconds");
        json_object_set_new(body, "timeoutMs", json_integer(timeout_ms));
    }
    if (cwd.count > 0)
        json_object_set_new(body, "cwd", json_string(cwd.at[0]));
    if (language.count > 0)
        json_object_set_new(body, "language", json_string(language.at[0]));
    if (command.count > 0) {
        json_t *cmd = json_array();

        for (size_t i = 0; i < command.count; i++)
            json_array_append_new(cmd, json_string(command.at[i]));
        if (json_array_size(cmd) != command.count) {
            json_decref(cmd);
            return cli_usage(cli, "an argument is not UTF-8 text");
        }
        json_object_set_new(body, "cmd", cmd);
    }
    if ((status = pairs_set(cli, &env, "env", body)) != 0 ||
        (status = set_file(cli, &code, "code", body)) != 0 ||
        (status = set_file(cli, &standard_input, "stdin", body)) != 0)
        return status;
    buf_append_str(&path, "~/");
    client_escape(&path, ids.at[0]);
    buf_append_str(&path, "/exec");
    answer = client_request(cli, "POST", buf_cstr(&path), body);
    return answer != NULL ? report(cli, answer) : CLI_EXEC_FAILED;
}

int cmd_cancel(struct cli *cli, int argc, char **argv)
{
    _cleanup_buf_ struct buf path = BUF_INIT(4096);
    _cleanup_json_ json_t *answer = NULL;

    if (argc != 2)
        return cli_usage(cli, "name a sandbox and an execution of it");
    buf_append_str(&path, "~/");
    client_escape(&path, argv[0]);
    buf_append_str(&path, "/executions/");
    client_escape(&path, argv[1]);
    buf_append_str(&path, "/cancel");
    answer = client_request(cli, "POST", buf_cstr(&path), NULL);
    if (answer == NULL)
        return cli_exit_status(&cli->err);
    output_object(cli, answer);
    return CLI_OK;
}
