//! Loom models of the protocols by which `soft` passes data between threads and processes (`cargo
//! xtask test loom`).
//!
//! The models compile soft's own source files (`shm/protocol.rs`, `shm/tenure.rs`, `shm/chunks.rs`)
//! over loom's atomics. Loom runs each model under every order of steps and every value that a load
//! may return, within a bound on preemptions. Some parts need a replacement. Mapped memory is a few
//! atomics. membarrier(2) executes a full fence in every thread of the other process at any point;
//! here a full fence stands at the only points where it matters, which soft marks with
//! `publication_fence`. A kick is a flag that is read at the end.
//!
//! Each model also runs with its orderings, or its barrier, weakened, and must then fail.
//!
//! Vocabulary: a *model* is one scenario with its assertions; a *twin* is the same model under a
//! `sync::Weakened` setting, named after the defect that must appear.
#![cfg(all(loom, test))]

#[path = "../../local/src/shm/chunks.rs"]
#[allow(dead_code, unreachable_pub, reason = "models run a part of what soft calls")]
mod chunks;
#[path = "../../local/src/shm/protocol.rs"]
#[allow(dead_code, unreachable_pub, reason = "models run a part of what soft calls")]
mod protocol;
mod sync;
#[path = "../../local/src/shm/tenure.rs"]
#[allow(dead_code, unreachable_pub, reason = "models run a part of what soft calls")]
mod tenure;

mod arrivals;
mod jobs;
mod rings;
mod targets;
mod tenures;

/// Replaces `shm/layout.rs`, with the fewest chunks that show every case.
mod layout {
    pub(crate) const CHUNKS: usize = 2;
}

/// Runs `model` in every order with at most `preemptions` preemptions of a thread.
fn explore(preemptions: usize, weakened: sync::Weakened, model: fn()) {
    sync::weaken(weakened);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Declares a model. The model holds unchanged, and each twin fails with the message `why` under
/// its weakening.
macro_rules! model {
    ($name:ident, $preemptions:literal, why: $why:literal, fails: { $($twin:ident: $weakened:expr,)+ }, $model:expr) => {
        #[test]
        fn $name() {
            crate::explore($preemptions, crate::sync::Weakened::default(), $model);
        }
        $(
            #[test]
            #[should_panic(expected = $why)]
            fn $twin() {
                crate::explore($preemptions, $weakened, $model);
            }
        )+
    };
}
use model;
