//! What an adapter is, fixed when the process joins the fabric: its GUID, and the settings of the
//! process that data paths read.
#![forbid(unsafe_code)]

use crate::config;
use crate::guid::AdapterGuid;
use soft_local::shm::layout::CHUNK_BYTES;
use soft_local::shm::slot::SEND_INLINE;

/// GUID and settings of an adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    guid: AdapterGuid,
    eager_bytes: usize,
    one_chunk: usize,
    strict: bool,
}

impl Identity {
    /// The adapter with this GUID, and the settings of the environment.
    pub(crate) fn new(guid: AdapterGuid) -> Self {
        let eager_bytes = config::eager_bytes();
        let one_chunk = eager_bytes.clamp(SEND_INLINE, CHUNK_BYTES);
        Self { guid, eager_bytes, one_chunk, strict: config::is_strict() }
    }

    /// The GUID, equal in all processes that share the adapter.
    pub(crate) const fn guid(&self) -> AdapterGuid {
        self.guid
    }

    /// Message length in bytes above which the receiver fetches the message (one copy), where
    /// possible.
    #[inline]
    pub(crate) const fn eager_bytes(&self) -> usize {
        self.eager_bytes
    }

    /// Message length in bytes up to which a message travels in one slot or one chunk.
    #[inline]
    pub(crate) const fn one_chunk(&self) -> usize {
        self.one_chunk
    }

    /// Whether everything is refused that the strictest hardware adapter refuses
    /// (`config::is_strict`).
    #[inline]
    pub(crate) const fn is_strict(&self) -> bool {
        self.strict
    }
}
