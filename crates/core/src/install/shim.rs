//! The scripts that pnpm writes for commands: a few lines of shell that run a file of a package with Node.

use super::lexical;

/// Gives the file that such a script runs; `None` for a script with any other line in it.
///
/// `bin` is the directory of the script; `is_inside` says of each path in which Node is told to look for packages whether
/// it may.
///
/// # Source
/// `@zkochan/cmd-shim` 7, `generateShShim`.
pub(super) fn target(text: &str, bin: &[u8], is_inside: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    const FRAME: &[&str] = &[
        "#!/bin/sh",
        "basedir=$(dirname \"$(echo \"$0\" | sed -e 's,\\\\,/,g')\")",
        "",
        "case `uname` in",
        "    *CYGWIN*|*MINGW*|*MSYS*)",
        "        if command -v cygpath > /dev/null 2>&1; then",
        "            basedir=`cygpath -w \"$basedir\"`",
        "        fi",
        "    ;;",
        "    *CYGWIN*|*MINGW*|*MSYS*) basedir=`cygpath -w \"$basedir\"`;;",
        "esac",
        "if [ -z \"$NODE_PATH\" ]; then",
        "if [ -x \"$basedir/node\" ]; then",
        "else",
        "fi",
    ];
    let mut found: Option<&str> = None;
    for line in text.lines() {
        let line = line.trim_end();
        if FRAME.contains(&line) {
            continue;
        }
        if let Some(paths) = line.strip_prefix("  export NODE_PATH=\"") {
            let paths = paths.strip_suffix('"')?;
            let paths = paths.strip_suffix(":$NODE_PATH").unwrap_or(paths);
            if !paths
                .split(':')
                .all(|path| plain(path) && is_inside(path.as_bytes()))
            {
                return None;
            }
            continue;
        }
        let rest = line.strip_prefix("  exec ")?;
        let rest = rest
            .strip_prefix("\"$basedir/node\" ")
            .or_else(|| rest.strip_prefix("node "))?;
        let file = rest
            .trim_start()
            .strip_prefix("\"$basedir/")?
            .strip_suffix("\" \"$@\"")?;
        if !plain(file) || found.is_some_and(|other| other != file) {
            return None;
        }
        found = Some(file);
    }
    lexical(&[bin, b"/", found?.as_bytes()].concat())
}

fn plain(text: &str) -> bool {
    !text.contains(['"', '$', '`', '\\', '\'', '\n'])
}

#[cfg(test)]
mod tests {
    use super::super::lies_in;
    use super::*;

    const SHIM: &str = "#!/bin/sh\nbasedir=$(dirname \"$(echo \"$0\" | sed -e 's,\\\\,/,g')\")\n\ncase `uname` in\n    *CYGWIN*|*MINGW*|*MSYS*)\n        if command -v cygpath > /dev/null 2>&1; then\n            basedir=`cygpath -w \"$basedir\"`\n        fi\n    ;;\nesac\n\nif [ -z \"$NODE_PATH\" ]; then\n  export NODE_PATH=\"/v/node_modules/.pnpm/a@1/node_modules:/v/node_modules/.pnpm/node_modules\"\nelse\n  export NODE_PATH=\"/v/node_modules/.pnpm/a@1/node_modules:/v/node_modules/.pnpm/node_modules:$NODE_PATH\"\nfi\nif [ -x \"$basedir/node\" ]; then\n  exec \"$basedir/node\"  \"$basedir/../.pnpm/a@1/node_modules/a/cli.js\" \"$@\"\nelse\n  exec node  \"$basedir/../.pnpm/a@1/node_modules/a/cli.js\" \"$@\"\nfi\n";

    #[test]
    fn a_script_of_pnpm_leads_to_one_file_and_any_other_line_is_refused() {
        let inside = |path: &[u8]| lies_in(path, b"/v/node_modules");
        let of = |text: &str| target(text, b"/v/node_modules/.bin", inside);
        let wanted = b"/v/node_modules/.pnpm/a@1/node_modules/a/cli.js".to_vec();
        assert_eq!(of(SHIM), Some(wanted));
        for (from, to) in [
            ("esac\n", "esac\nevil\n"),
            ("exec node ", "exec evil "),
            ("/v/node_modules/.pnpm/a@1/node_modules:", "/w/evil:"),
            (
                "/v/node_modules/.pnpm/a@1/node_modules:",
                "/v/node_modules/../evil:",
            ),
            ("a/cli.js\" \"$@\"\nfi", "a/other.js\" \"$@\"\nfi"),
            ("cli.js", "$(evil).js"),
            ("exec \"$basedir/node\"  ", "evil; exec \"$basedir/node\"  "),
        ] {
            assert_eq!(of(&SHIM.replacen(from, to, 1)), None, "{to}");
        }
        assert_eq!(of("#!/bin/sh\nexit 0\n"), None, "vector 40");
        assert_eq!(of(""), None);
    }
}
