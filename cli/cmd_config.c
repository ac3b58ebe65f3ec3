/* paddock config …: what the programs would read. */
#include <stdio.h>
#include <string.h>

#include "cli/options.h"
#include "cli/output.h"
#include "common/json.h"

int cmd_config_check(struct cli *cli, int argc, char **argv)
{
    (void)argv;
    if (argc != 0)
        return cli_usage(cli, "config check takes no operand");
    if (cli_config(cli) == NULL)
        return cli_exit_status(&cli->err);
    puts(cli->json ? "{\"valid\": true}" : "the configuration is valid");
    return CLI_OK;
}

/* {section: {key: "value"}} from the file form, so that one place decides what is shown. */
static int print_json(struct cli *cli, const struct config *config)
{
    _cleanup_json_ json_t *sections = json_object();
    _cleanup_free_ char *text = NULL;
    json_t *section = NULL;
    char *save = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL) {
        error_set(&cli->err, ERR_INTERNAL, "no memory");
        return CLI_FAILED;
    }
    config_show(config, out, false);
    if (fclose(out) != 0) {
        error_set(&cli->err, ERR_INTERNAL, "no memory");
        return CLI_FAILED;
    }
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *value = strstr(line, " = ");

        if (line[0] == '[') {
            line[strcspn(line, "]")] = '\0';
            section = json_object();
            json_object_set_new(sections, line + 1, section);
        } else if (section != NULL && value != NULL) {
            *value = '\0';
            json_object_set_new(section, line, json_string(value + 3));
        }
    }
    output_object(cli, sections);
    return CLI_OK;
}

int cmd_config_show(struct cli *cli, int argc, char **argv)
{
    struct option_values none = {0}, help = {0};
    const struct option_spec specs[] = {{"help-text", false, true, &help}};
    const struct config *config;
    int status = options_parse(cli, argc, argv, specs, ARRAY_LEN(specs), &none, NULL);

    if (status != 0)
        return status;
    if (none.count > 0)
        return cli_usage(cli, "config show takes no operand");
    config = cli_config(cli);
    if (config == NULL)
        return cli_exit_status(&cli->err);
    if (cli->json)
        return print_json(cli, config);
    config_show(config, stdout, help.count > 0);
    return CLI_OK;
}
