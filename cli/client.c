/*
 * REST over libcurl. The token travels in a header only; redirects are not
 * followed, so that it can reach no other host than the one named.
 */
#include "cli/client.h"

#include <curl/curl.h>
#include <string.h>

#include "common/id.h"

#define ANSWER_MAX (64u << 20)
/* The service holds an answer for 300 s at most; the rest is for the way. */
#define ANSWER_TIMEOUT_S 330L
#define TRIES 3

static size_t collect(char *data, size_t size, size_t count, void *arg)
{
    return buf_append(arg, data, size * count) == 0 ? size * count : 0;
}

void client_escape(struct buf *out, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        /* unreserved characters of RFC 3986, section 2.3 */
        if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
            strchr("-._~", *p) != NULL)
            buf_append(out, p, 1);
        else
            buf_printf(out, "%%%02X", *p);
    }
}

static int build_url(struct cli *cli, const char *path, struct buf *url)
{
    bool needs_token = strcmp(path, "/healthz") != 0;
    size_t len;

    if (cli->url == NULL || (needs_token && cli->token == NULL) ||
        (path[0] == '~' && cli->project == NULL))
        return error_set(&cli->err, ERR_CONFIG,
                         "set PADDOCK_URL, PADDOCK_TOKEN and PADDOCK_PROJECT in the environment "
                         "(or --url and --project)");
    len = strlen(cli->url);
    while (len > 0 && cli->url[len - 1] == '/')
        len--;
    buf_append(url, cli->url, len);
    if (path[0] == '~') {
        buf_append_str(url, "/api/v1/projects/");
        client_escape(url, cli->project);
        buf_append_str(url, "/sandboxes");
        path++;
    }
    buf_append_str(url, path);
    return buf_cstr(url) != NULL && !url->overflowed
               ? 0
               : error_set(&cli->err, ERR_INTERNAL, "no memory");
}

static int problem(struct cli *cli, long status, const json_t *answer)
{
    const char *name = json_string_value(json_object_get(answer, "code"));
    const char *detail = json_string_value(json_object_get(answer, "detail"));
    const char *request_id = json_string_value(json_object_get(answer, "requestId"));

    if (name == NULL)
        return error_set(&cli->err, status == 404 ? ERR_NOT_FOUND : ERR_DAEMON_UNAVAILABLE,
                         "the server answered HTTP %ld without problem details; is PADDOCK_URL "
                         "right?",
                         status);
    return error_set(&cli->err, error_code_from_name(name), "%s (request %s)",
                     detail != NULL ? detail : name, request_id != NULL ? request_id : "?");
}

static struct curl_slist *request_headers(const struct cli *cli, const char *method)
{
    char line[256];
    char key[ID_SIZE];
    struct curl_slist *headers = NULL;

    if (cli->token != NULL) {
        (void)snprintf(line, sizeof(line), "Authorization: Bearer %s", cli->token);
        headers = curl_slist_append(headers, line);
    }
    headers = curl_slist_append(headers, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");
    if (strcmp(method, "POST") == 0) {
        id_new(key);
        (void)snprintf(line, sizeof(line), "Idempotency-Key: %s", key);
        headers = curl_slist_append(headers, line);
    }
    explicit_bzero(line, sizeof(line));
    return headers;
}

static CURLcode perform(CURL *curl, struct buf *answer)
{
    CURLcode result = CURLE_OK;

    for (int i = 0; i < TRIES; i++) {
        buf_clear(answer);
        result = curl_easy_perform(curl);
        if (result != CURLE_COULDNT_CONNECT && result != CURLE_GOT_NOTHING &&
            result != CURLE_RECV_ERROR && result != CURLE_SEND_ERROR)
            break;
    }
    return result;
}

json_t *client_request(struct cli *cli, const char *method, const char *path, const json_t *body)
{
    _cleanup_buf_ struct buf url = BUF_INIT(16384);
    _cleanup_buf_ struct buf answer = BUF_INIT(ANSWER_MAX);
    _cleanup_free_ char *text = NULL;
    struct curl_slist *headers;
    json_t *json = NULL;
    CURLcode result;
    long status = 0;
    CURL *curl;

    if (build_url(cli, path, &url) != 0)
        return NULL;
    if (body != NULL && (text = json_dumps(body, JSON_COMPACT)) == NULL) {
        error_set(&cli->err, ERR_INTERNAL, "no memory");
        return NULL;
    }
    curl = curl_easy_init();
    if (curl == NULL) {
        error_set(&cli->err, ERR_INTERNAL, "libcurl could not be started");
        return NULL;
    }
    headers = request_headers(cli, method);
    curl_easy_setopt(curl, CURLOPT_URL, url.data);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT,
                     cli->answer_timeout_s > 0 ? cli->answer_timeout_s : ANSWER_TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "paddock/" PADDOCK_VERSION);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    /* A POST has a body, if only an empty one: web servers want its length told. */
    if (text != NULL || strcmp(method, "POST") == 0) {
        const char *sent = text != NULL ? text : "";

        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, sent);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(sent));
    }
    result = perform(curl, &answer);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);

    if (result != CURLE_OK) {
        error_set(&cli->err, ERR_DAEMON_UNAVAILABLE, "no answer from %s: %s", cli->url,
                  curl_easy_strerror(result));
        return NULL;
    }
    json = json_loadb(answer.data != NULL ? answer.data : "", answer.len, 0, NULL);
    if (status >= 200 && status < 300 && json != NULL)
        return json;
    problem(cli, status, json);
    json_decref(json);
    return NULL;
}
