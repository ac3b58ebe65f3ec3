# Fills a page's @KEYS@ and @COMMANDS@ from the file `said` (`paddock --help`, then `paddock config
# show --help-text`) and puts in the paths of this build, so that no page has a list or a path of its
# own. Called by the Makefile.

# What Markdown would take for its own.
function escape(text) {
    gsub(/[][*_<>\\]/, "\\\\&", text)
    return text
}

# "# Default: VALUE; BOUNDS"
function default_of(line,    text, cut) {
    text = substr(line, length("# Default: ") + 1)
    cut = match(text, /; [^;]*$/)
    return cut ? "`" substr(text, 1, cut - 1) "`" escape(substr(text, cut)) : "`" text "`"
}

# Of each key: a line of help, a line of default and bounds, and the key with its value.
function keys(    line, help, bounds) {
    while ((getline line < said) > 0) {
        if (line ~ /^\[/) {
            printf "## \\[%s\\]\n\n", substr(line, 2, length(line) - 2)
        } else if (line ~ /^# Default: /) {
            bounds = default_of(line)
        } else if (line ~ /^# /) {
            help = escape(substr(line, 3))
        } else if (line ~ /^[a-z0-9_]+ =/) {
            sub(/ =.*/, "", line)
            printf "`%s`\n\n:   %s\n\n    Default: %s\n\n", line, help, bounds
            found++
        }
    }
    close(said)
}

# Of each command: after two blanks its words, after six its help.
function commands(    line) {
    while ((getline line < said) > 0) {
        if (line ~ /^      /) {
            sub(/^ +/, "", line)
            printf ":   %s\n\n", escape(line)
        } else if (line ~ /^  /) {
            gsub(/^ +| +$/, "", line)
            printf "`%s`\n\n", line
            found++
        }
    }
    close(said)
}

function require_found(what) {
    if (!found) {
        print FILENAME ": no " what " to fill in" > "/dev/stderr"
        exit 1
    }
    found = 0
}

/^@KEYS@$/ { keys(); require_found("keys"); next }
/^@COMMANDS@$/ { commands(); require_found("commands"); next }
{
    gsub(/@sysconfdir@/, sysconfdir)
    gsub(/@pkglibexecdir@/, pkglibexecdir)
    gsub(/@docdir@/, docdir)
    print
}
