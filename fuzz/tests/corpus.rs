//! Runs every input of the corpora, earlier findings included, without libFuzzer, so on any
//! toolchain.

use std::path::Path;

#[test]
fn no_input_of_a_corpus_finds_anything() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, run) in ferroverbs_fuzz::TARGETS {
        let folder = std::fs::read_dir(corpus.join(name)).expect("each target has a corpus");
        let mut inputs = 0;
        for entry in folder {
            let file = entry.expect("an entry").path();
            println!("{}", file.display());
            run(&std::fs::read(&file).expect("a readable file"));
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has an empty corpus");
    }
}
