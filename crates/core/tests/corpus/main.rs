//! Replays the inputs that the fuzzer starts from, and those that once broke a law.

#[allow(
    unreachable_pub,
    clippy::expect_used,
    reason = "the laws are those of the fuzzer's own crate, which is no part of the workspace"
)]
#[path = "../../../../fuzz/src/lib.rs"]
mod laws;

#[cfg(test)]
mod tests {
    use super::laws::TARGETS;
    use std::path::Path;

    #[test]
    #[allow(
        clippy::disallowed_methods,
        clippy::print_stderr,
        reason = "the corpus lies on the disk, and the input that breaks a law is to be named"
    )]
    fn every_input_of_the_corpus_obeys_its_laws() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let mut targets: Vec<_> = std::fs::read_dir(&corpus)
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        targets.sort_by_key(std::fs::DirEntry::file_name);
        let mut names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        // Archives are read by host, whose own tests replay theirs.
        names.push("archive");
        names.sort_unstable();
        let found: Vec<_> = targets
            .iter()
            .map(|t| t.file_name().into_string().unwrap())
            .collect();
        assert_eq!(found, names, "each target has its inputs");
        for (name, law) in TARGETS {
            let mut count = 0;
            for input in std::fs::read_dir(corpus.join(name)).unwrap() {
                let input = input.unwrap().path();
                eprintln!("{}", input.display());
                law(&std::fs::read(&input).unwrap());
                count += 1;
            }
            assert!(count >= 5, "{name}: {count} inputs");
        }
    }
}
