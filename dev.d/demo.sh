# What the project is for, in one screen: two scripts of a stranger in a guest. Sourced by ./dev.
# shellcheck shell=bash

rest() {
    local method=$1 path=$2
    shift 2
    # The token goes in by a file descriptor: command lines are public.
    curl -sS --fail-with-body -m 330 -X "$method" -H 'Content-Type: application/json' \
        -H @<(printf 'Authorization: Bearer %s\n' "$PADDOCK_TOKEN") \
        "$PADDOCK_URL/api/v1/projects/$PADDOCK_PROJECT/sandboxes$path" "$@"
}

# Runs the request body $2 and shows what it printed, under title $1.
demo_exec() {
    local answer
    answer=$(rest POST "/$sandbox/exec" -d "$2") || die "exec failed: $answer"
    printf '\n== %s\n%s' "$1" "$(jq -r '.stdout + .stderr' <<<"$answer")"
    printf '\n   (%s, exit code %s)\n' "$(jq -r .state <<<"$answer")" \
        "$(jq -r .exitCode <<<"$answer")"
    jq -e '.state == "succeeded"' <<<"$answer" >/dev/null || die "the demo's script failed"
}

do_demo() {
    local exports created script
    exports=$(do_up)
    eval "$exports"
    created=$(rest POST '?wait=60' -d '{"template": "node", "labels": {"made-by": "demo"}}') ||
        die "no sandbox: $created"
    sandbox=$(jq -r .id <<<"$created")
    # Whatever happens next: no sandbox stays behind.
    trap 'rest DELETE "/$sandbox" >/dev/null' EXIT
    [[ $(jq -r .state <<<"$created") == ready ]] || die "no sandbox: $created"
    printf '== A sandbox\n%s\n' "$(jq '{id, template, state}' <<<"$created")"

    script=$(cat <<'JS'
import os from 'node:os';
import playwright from 'playwright/package.json' with { type: 'json' };
const squares = await Promise.all([1, 2, 3].map(async (n) => n * n));
console.log(`Node.js ${process.version} on ${os.arch()}, Playwright ${playwright.version}: ${squares}`);
console.log('network:', Object.keys(os.networkInterfaces()).join(' '), '- uid:', process.getuid());
JS
    )
    demo_exec 'A Node.js ES module' \
        "$(jq -n --arg code "$script" '{code: $code, language: "javascript"}')"
    script=$(cat <<'PY'
import pathlib, platform, sys
path = pathlib.Path("hello.txt")
path.write_text("written by Python in /workspace\n")
print("Python", sys.version.split()[0], "on", platform.system(), platform.release())
print(path.read_text(), end="")
try:
    pathlib.Path("/etc/passwd").open("a")
except OSError as error:
    print("outside /workspace:", error.strerror)
PY
    )
    demo_exec 'A Python script' "$(jq -n --arg code "$script" '{code: $code, language: "python"}')"
    demo_exec 'The kernel it ran on: dmesg of the guest' '{"cmd": ["dmesg"]}'
    printf '\n== Timings\n'
    rest GET "/$sandbox" | jq .timings
    trap - EXIT
    rest DELETE "/$sandbox" | jq '{id, state, reason}'
}
