//! Models of how `soft` passes things between threads and processes (`cargo xtask test loom`).
//!
//! The protocols are soft's own source files (`shm/protocol.rs`, `shm/tenure.rs`, `shm/chunks.rs`), compiled over loom's atomics: loom runs each
//! model under every order of its steps and every value that a load may return, within a bound on preemptions. What can't run
//! there has a stand-in: mapped memory is a few atomics, and membarrier(2), which puts a full fence into the program of every
//! thread of the other process at whatever point it is, is a full fence at the only points where it matters, those that soft marks
//! with `publication_fence`. A kick is a flag that is looked at in the end.
//!
//! Each model is also run with its orders, or its barrier, weakened, and must fail then.
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

mod bells;
mod jobs;
mod rings;
mod targets;
mod tenures;

/// What stands in for `shm/layout.rs`: as few chunks as show everything.
mod layout {
    pub(crate) const CHUNKS: usize = 2;
}

/// Runs `model` in every order with at most `preemptions` of them forced upon a thread.
fn explore(preemptions: usize, weakened: sync::Weakened, model: fn()) {
    sync::weaken(weakened);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A model: holds as it is, and fails, saying `why`, with what `fails` lists weakened.
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
