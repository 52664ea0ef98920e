//! What a package manager of Node takes for a tarball, and what it takes for something else.
//!
//! npm tells by the look of a text whether it names a package of a registry, a tarball, a directory or a repository, and
//! a repository is cloned and built where no integrity is compared. So nothing reaches it but the name and version of a
//! package, an address of a tarball, or a tarball of the tree.
//!
//! # Source
//! npm-package-arg 12, `lib/npa.js`, and hosted-git-info 8, `lib/from-url.js`; Yarn 4, `gitUtils.isGitUrl`.

/// How the name of a tarball ends, whatever its case.
const TARBALLS: [&str; 3] = [".tgz", ".tar.gz", ".tar"];
/// Hosts whose plain addresses are taken for repositories.
const HOSTS: [&str; 5] = [
    "github.com",
    "gist.github.com",
    "gitlab.com",
    "bitbucket.org",
    "git.sr.ht",
];

/// Checks how a lock names a package, its version and where its tarball lies; `from` is empty where the lock leaves that
/// to the registry.
///
/// # Errors
/// Why it is refused, in words that follow "the lockfile".
pub(super) fn check(name: &str, version: &str, from: &str) -> Result<(), &'static str> {
    if !is_name(name) {
        return Err("has a package whose name no registry has");
    }
    if !is_version(version) {
        return Err("has a package whose version no registry has");
    }
    if from.is_empty() {
        return Ok(());
    }
    if let Some(path) = from.strip_prefix("file:") {
        return match is_tarball(path) {
            true => Ok(()),
            false => Err("takes a package from a directory, which no hash binds"),
        };
    }
    match is_web(from) {
        true if is_repository(from) => Err("takes a package from git, which no hash binds"),
        true => Ok(()),
        false => Err("takes a package from where no tarball lies: git, or a place that is not understood"),
    }
}

/// Says whether an address is one of the web.
pub(super) fn is_web(from: &str) -> bool {
    from.starts_with("https://") || from.starts_with("http://")
}

fn is_tarball(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    TARBALLS.iter().any(|end| path.ends_with(end))
}

/// Says whether an address of the web is taken for that of a repository.
pub(super) fn is_repository(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let plain = rest.split(['#', '?']).next().unwrap_or(rest);
    let (authority, path) = plain.split_once('/').unwrap_or((plain, ""));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let host = host.split(':').next().unwrap_or(host).to_ascii_lowercase();
    let host = host.strip_prefix("www.").unwrap_or(&host);
    let last = path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    let third = parts.get(2).copied().unwrap_or("");
    // Of these hosts, an address with an owner and a name is a repository, however the name ends.
    let archive = match host {
        // Yarn has an address of its own for `tarball`, which it clones.
        "github.com" => !matches!(third, "" | "tree" | "tarball"),
        "gitlab.com" => path.contains("/-/") || path.contains("/archive.tar.gz"),
        "bitbucket.org" => third == "get",
        "gist.github.com" => third == "raw",
        "git.sr.ht" => third == "archive",
        _ => true,
    };
    last.ends_with(".git") || (HOSTS.contains(&host) && !(archive && is_tarball(last)))
}

/// The names that a registry may have, of old packages too; none that reads as a path or a file.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-._~!'()*".contains(c);
        !part.is_empty() && !part.starts_with(['.', '-', '~']) && part.chars().all(known)
    };
    match name.strip_prefix('@') {
        Some(scoped) => scoped
            .split_once('/')
            .is_some_and(|(scope, name)| plain(scope) && plain(name)),
        None => plain(name) && !is_tarball(name),
    }
}

fn is_version(version: &str) -> bool {
    version.starts_with(|c: char| c.is_ascii_digit())
        && version
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tarball_is_one_by_its_address() {
        for from in [
            "",
            "https://registry.example/ms/-/ms-2.1.3.tgz",
            "http://127.0.0.1:4873/ms/-/ms-2.1.3.tgz",
            "https://npm.pkg.github.com/download/@a/b/1.0.0/0123abc",
            "https://github.com/a/b/archive/v1.0.0.tar.gz",
            "https://codeload.github.com/a/b/tar.gz/0123abc",
            "https://gitlab.com/api/v4/projects/1/packages/npm/ms/-/ms-2.1.3.tgz",
            "file:vendor/ms-2.1.3.TGZ",
        ] {
            assert_eq!(check("ms", "2.1.3", from), Ok(()), "{from}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for from in [
            "user/repo",
            "user/repo-1.0.0",
            "user/repo#semver:1",
            "github:user/repo",
            "gitlab:user/repo",
            "bitbucket:user/repo",
            "gist:0123",
            "git@github.com:user/repo.git",
            "git+https://host/x.git",
            "git://host/x.tgz",
            "ssh://git@host/x.tgz",
            "https://github.com/user/repo",
            "https://github.com/user/repo/",
            "https://www.GitHub.com/user/repo#v1",
            "https://token@github.com:443/user/repo",
            "https://github.com/user/repo/tree/main",
            "https://github.com/user/repo/tarball/main.tgz",
            "https://github.com/user/repo.tgz",
            "https://github.com/user/repo.tar.gz",
            "https://gitlab.com/user/repo.tgz",
            "https://bitbucket.org/user/repo/src/x.tgz",
            "https://gist.github.com/user/0123.tgz",
            "https://git.sr.ht/~user/repo.tar.gz",
            "https://host/x/repo.git",
            "https://host/x/repo.git#main",
            "HTTPS://host/x.tgz",
            "ftp://host/x.tgz",
            "file:",
            "file:vendor/ms",
            "../ms-2.1.3.tgz",
            "/srv/ms-2.1.3.tgz",
            "~/ms.tgz",
            "npm:other@1.0.0",
            "ms@https://host/x.tgz",
        ] {
            assert!(check("ms", "2.1.3", from).is_err(), "{from}");
        }
    }

    #[test]
    fn a_name_and_a_version_ask_a_registry() {
        for name in ["ms", "@a/b", "JSONStream", "lodash.get", "a_b", "@a_b/c.d"] {
            assert_eq!(check(name, "1.0.0-rc.1+x.y", ""), Ok(()), "{name}");
        }
        for name in [
            "",
            "a/b",
            "@a",
            "@/b",
            "@a/",
            "@a/b/c",
            "./a",
            "../a",
            ".a",
            "~a",
            "-a",
            "a b",
            "git+ssh:x",
            "a.tgz",
            "a@b",
            "c:\\x",
            "a#b",
        ] {
            assert!(check(name, "1.0.0", "").is_err(), "{name}");
        }
        for version in [
            "",
            "latest",
            "^1.0.0",
            "git+ssh://h/x",
            "npm:a@1",
            "1/2",
            "user/repo",
            "file:x",
            "1 || 2",
        ] {
            assert!(check("ms", version, "").is_err(), "{version}");
        }
    }
}
