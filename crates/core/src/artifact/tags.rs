//! Which wheel fits a machine: the compatibility tags of CPython on Linux.
//!
//! It chooses among the artifacts that a lock allows; whatever it chooses, the installer looks again.
//!
//! # Source
//! PyPA, "Platform compatibility tags" (PEP 425, 600, 656).

use crate::lockset::{Artifact, normal_name, normal_version};

/// Names the C library that an interpreter was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// The GNU one, of this version.
    Glibc(u32, u32),
    /// musl, of this version.
    Musl(u32, u32),
}

/// Says what an interpreter can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    /// Major and minor version of Python.
    pub python: (u32, u32),
    /// Its ABI, such as `cp311` or `cp313t`.
    pub abi: String,
    /// The architecture, as in `x86_64`.
    pub machine: String,
    /// Its C library.
    pub libc: Libc,
}

/// Holds the parts of the file name of a wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelName {
    /// The normalised name of the distribution.
    pub name: String,
    /// The normalised version.
    pub version: String,
    /// The build number, if there is one.
    build: Option<(u64, String)>,
    python: Vec<String>,
    abi: Vec<String>,
    platform: Vec<String>,
}

impl WheelName {
    /// Splits the file name, or the URL, of a wheel; `None` for what is none.
    #[must_use]
    pub fn parse(place: &str) -> Option<Self> {
        let file = file_name(place);
        let parts: Vec<&str> = file.strip_suffix(".whl")?.split('-').collect();
        let (head, tags) = parts.split_at_checked(parts.len().checked_sub(3)?)?;
        let (name, version, build) = match head {
            [name, version] => (name, version, None),
            [name, version, build] => {
                let digits = build.len() - build.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let number = build[..digits].parse().ok()?;
                (name, version, Some((number, build[digits..].to_owned())))
            }
            _ => return None,
        };
        let several = |text: &str| text.split('.').map(str::to_owned).collect();
        Some(Self {
            name: normal_name(name),
            version: normal_version(version),
            build,
            python: several(tags[0]),
            abi: several(tags[1]),
            platform: several(tags[2]),
        })
    }
}

/// Gives the file name at the end of a URL or path.
#[must_use]
pub fn file_name(place: &str) -> String {
    let place = place.split(['#', '?']).next().unwrap_or(place);
    let file = place.rsplit('/').next().unwrap_or(place);
    file.replace("%2B", "+").replace("%2b", "+").replace("%21", "!")
}

impl Tags {
    /// Chooses the wheel that fits best; `None` where none of these does.
    #[must_use]
    pub fn choose<'a>(&self, artifacts: &'a [Artifact]) -> Option<&'a Artifact> {
        let ranked = artifacts.iter().filter_map(|artifact| {
            let wheel = WheelName::parse(&artifact.name)?;
            let rank = self.rank(&wheel)?;
            Some(((rank, core::cmp::Reverse(wheel.build)), artifact))
        });
        ranked.min_by(|a, b| a.0.cmp(&b.0)).map(|(_, artifact)| artifact)
    }

    /// Says whether a wheel runs here.
    #[must_use]
    pub fn fits(&self, wheel: &WheelName) -> bool {
        self.rank(wheel).is_some()
    }

    /// Ranks a wheel: the more it is made for this interpreter and this machine, the lower.
    fn rank(&self, wheel: &WheelName) -> Option<(u32, u32)> {
        let pairs = wheel
            .python
            .iter()
            .flat_map(|python| wheel.abi.iter().map(move |abi| (python, abi)));
        let interpreter = pairs
            .filter_map(|(python, abi)| self.interpreter(python, abi))
            .min()?;
        let platform = wheel.platform.iter().filter_map(|p| self.platform(p)).min()?;
        Some((interpreter + if platform == ANY { 1000 } else { 0 }, platform))
    }

    fn interpreter(&self, python: &str, abi: &str) -> Option<u32> {
        let (major, minor) = self.python;
        let own = format!("cp{major}{minor}");
        let version = |text: &str| -> Option<u32> {
            let rest = text.strip_prefix(&major.to_string())?;
            if rest.is_empty() {
                Some(0)
            } else {
                rest.parse().ok()
            }
        };
        if let Some(at) = python.strip_prefix("cp").and_then(version) {
            let older = minor.checked_sub(at)?;
            return match abi {
                _ if python == own && abi == self.abi => Some(0),
                // A free-threaded interpreter has another layout of its objects.
                "abi3" if !self.abi.ends_with('t') => Some(1 + older * 2),
                "none" if python == own => Some(2),
                _ => None,
            };
        }
        let at = python.strip_prefix("py").and_then(version)?;
        (abi == "none" && at <= minor).then(|| 200 + (minor - at))
    }

    fn platform(&self, platform: &str) -> Option<u32> {
        if platform == "any" {
            return Some(ANY);
        }
        let plain = platform.strip_suffix(&self.machine)?.strip_suffix('_')?;
        if plain == "linux" {
            return Some(ANY - 1);
        }
        let (family, (own_major, own_minor)) = match self.libc {
            Libc::Glibc(major, minor) => ("manylinux", (major, minor)),
            Libc::Musl(major, minor) => ("musllinux", (major, minor)),
        };
        let (major, minor) = match (plain, self.libc) {
            ("manylinux1", Libc::Glibc(..)) => (2, 5),
            ("manylinux2010", Libc::Glibc(..)) => (2, 12),
            ("manylinux2014", Libc::Glibc(..)) => (2, 17),
            _ => {
                let (major, minor) = plain.strip_prefix(family)?.strip_prefix('_')?.split_once('_')?;
                (major.parse().ok()?, minor.parse().ok()?)
            }
        };
        (own_major == major && minor <= own_minor).then(|| own_minor - minor)
    }
}

const ANY: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lockset::Algorithm;

    fn here() -> Tags {
        Tags {
            python: (3, 11),
            abi: "cp311".to_owned(),
            machine: "x86_64".to_owned(),
            libc: Libc::Glibc(2, 36),
        }
    }

    fn choose(tags: &Tags, names: &[&str]) -> Option<String> {
        let artifacts: Vec<Artifact> = names
            .iter()
            .map(|name| Artifact {
                name: (*name).to_owned(),
                algorithm: Algorithm::Sha256,
                digest: vec![0; 32],
                size_bytes: None,
            })
            .collect();
        tags.choose(&artifacts).map(|a| a.name.clone())
    }

    #[test]
    fn the_wheel_that_is_made_most_for_this_machine_is_chosen() {
        let best = [
            "a-1-cp311-cp311-manylinux_2_28_x86_64.whl",
            "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "a-1-cp311-cp311-manylinux1_x86_64.whl",
            "a-1-cp311-cp311-linux_x86_64.whl",
            "a-1-cp311-abi3-manylinux_2_17_x86_64.whl",
            "a-1-cp311-none-manylinux_2_17_x86_64.whl",
            "a-1-cp38-abi3-manylinux_2_17_x86_64.whl",
            "a-1-py3-none-manylinux_2_17_x86_64.whl",
            "a-1-cp311-none-any.whl",
            "a-1-py3-none-any.whl",
            "a-1-py2.py3-none-any.whl",
        ];
        for at in 0..best.len() - 1 {
            // The last two are ranked alike, and the first one stays.
            assert_eq!(choose(&here(), &best[at..]).as_deref(), Some(best[at]));
            let backwards: Vec<&str> = best[at..best.len() - 1].iter().rev().copied().collect();
            assert_eq!(choose(&here(), &backwards).as_deref(), Some(best[at]));
        }
    }

    #[test]
    fn what_does_not_run_here_is_never_chosen() {
        for name in [
            "a-1-cp312-cp312-manylinux_2_17_x86_64.whl",
            "a-1-cp312-abi3-manylinux_2_17_x86_64.whl",
            "a-1-cp311-cp311-manylinux_2_17_aarch64.whl",
            "a-1-cp311-cp311-musllinux_1_2_x86_64.whl",
            "a-1-cp311-cp311-manylinux_2_40_x86_64.whl",
            "a-1-cp311-cp311t-manylinux_2_17_x86_64.whl",
            "a-1-cp311-cp311-win_amd64.whl",
            "a-1-py2-none-any.whl",
            "a-1-py312-none-any.whl",
            "a-1-pp311-pypy311_pp73-manylinux_2_17_x86_64.whl",
            "a-1.tar.gz",
        ] {
            assert_eq!(choose(&here(), &[name]), None, "{name}");
        }
        let mut threaded = here();
        threaded.abi = "cp311t".to_owned();
        assert_eq!(
            choose(&threaded, &["a-1-cp38-abi3-manylinux_2_17_x86_64.whl"]),
            None
        );
        let mut musl = here();
        musl.libc = Libc::Musl(1, 2);
        assert!(choose(&musl, &["a-1-cp311-cp311-musllinux_1_1_x86_64.whl"]).is_some());
        assert!(choose(&musl, &["a-1-cp311-cp311-manylinux2014_x86_64.whl"]).is_none());
    }

    #[test]
    fn a_higher_build_and_an_odd_name() {
        let two = ["a-1-1-py3-none-any.whl", "a-1-2x-py3-none-any.whl"];
        assert_eq!(choose(&here(), &two).as_deref(), Some(two[1]));
        let wheel = WheelName::parse("https://h/x/Foo_Bar-1.0%2Bcpu-py3-none-any.whl#sha256=0").unwrap();
        assert_eq!(
            (wheel.name.as_str(), wheel.version.as_str()),
            ("foo-bar", "1.0+cpu")
        );
        for bad in [
            "a-py3-none-any.whl",
            "a-1-x-py3-none-any.whl",
            "any.whl",
            "-.whl",
            "",
        ] {
            assert!(WheelName::parse(bad).is_none(), "{bad}");
        }
    }
}
