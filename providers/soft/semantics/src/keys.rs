//! The check of a key: ranges, rights, protection domains, and the QP of a window (IBTA 1.7 10.6,
//! 9.7.4.1).
//!
//! Responders and local lists check every access with [`KeyEntry::admit`].

/// A region table's entry of a region or a bound window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The valid key.
    pub rkey: u32,
    /// `IBV_ACCESS_*` flags, and further flags of the table's owner.
    pub access: u32,
    /// Protection domain.
    pub pd: u64,
    /// The QP to which a window is bound; 0: any.
    pub qpn: u32,
    /// The address of the first byte, as users of the key name it.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// The address of the first byte in the owner's address space.
    pub va: u64,
}

/// A requested access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The key of the request.
    pub rkey: u32,
    /// The owner's QP that received the request.
    pub qpn: u32,
    /// The protection domain of that QP.
    pub pd: u32,
    /// First address, as the request names it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The required `IBV_ACCESS_*` flags.
    pub required: u32,
}

/// The memory that a key permits to access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessibleRange {
    /// Address in the owner's process.
    pub va: u64,
    /// The access flags of the [`KeyEntry`].
    pub access: u32,
}

/// Why a key does not permit an access. The requester always gets a remote access error
/// (IBTA 1.7 9.7.5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDenied {
    /// The key does not exist, or no longer.
    Key,
    /// The key belongs to another protection domain.
    Domain,
    /// An access right is missing.
    MissingRight,
    /// The range exceeds the key's range.
    Range,
    /// The window is bound to another QP.
    Qp,
}

impl KeyEntry {
    /// The location of the bytes of `requested`, if the key permits the access.
    ///
    /// # Errors
    /// The first violated rule, in the order of [`AccessDenied`].
    #[inline]
    pub const fn admit(&self, requested: &Access) -> Result<AccessibleRange, AccessDenied> {
        if self.rkey != requested.rkey {
            return Err(AccessDenied::Key);
        }
        if self.pd != requested.pd as u64 {
            return Err(AccessDenied::Domain);
        }
        if self.access & requested.required != requested.required {
            return Err(AccessDenied::MissingRight);
        }
        let Some(va) = self.locate(requested.addr, requested.len) else {
            return Err(AccessDenied::Range);
        };
        if self.qpn != 0 && self.qpn != requested.qpn {
            return Err(AccessDenied::Qp);
        }
        Ok(AccessibleRange { va, access: self.access })
    }

    /// The location of `len` bytes at `addr`, if all are in range. An entry that wraps around the
    /// address space permits none.
    #[inline]
    pub const fn locate(&self, addr: u64, len: u64) -> Option<u64> {
        let (Some(own), Some(end)) = (self.iova.checked_add(self.len), addr.checked_add(len))
        else {
            return None;
        };
        if addr < self.iova || end > own {
            return None;
        }
        Some(self.va.wrapping_add(addr - self.iova))
    }
}

/// The protection domain for keys of a QP's peer, if the QP grants the rights of `need`.
///
/// # Errors
/// `MissingRight`: the QP does not grant them.
#[inline]
pub const fn granted_domain(qp_pd: u32, qp_access: u32, need: u32) -> Result<u32, AccessDenied> {
    if qp_access & need == need { Ok(qp_pd) } else { Err(AccessDenied::MissingRight) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u32 = abi::IBV_ACCESS_REMOTE_READ;
    const WRITE: u32 = abi::IBV_ACCESS_REMOTE_WRITE;
    const ENTRY: KeyEntry =
        KeyEntry { rkey: 7, access: READ, pd: 1, qpn: 0, iova: 0x1000, len: 16, va: 0x9000 };
    const ASKED: Access = Access { rkey: 7, qpn: 5, pd: 1, addr: 0x1004, len: 12, required: READ };

    /// IBTA 1.7 9.7.4.1, 10.6.
    #[test]
    fn a_key_opens_its_bytes_and_each_rule_forbids_on_its_own() {
        assert_eq!(ENTRY.admit(&ASKED), Ok(AccessibleRange { va: 0x9004, access: READ }));
        type Change = fn(&mut Access);
        let wrong: [(AccessDenied, Change); 8] = [
            (AccessDenied::Key, |a| a.rkey = 8),
            (AccessDenied::Domain, |a| a.pd = 2),
            (AccessDenied::MissingRight, |a| a.required = WRITE),
            (AccessDenied::MissingRight, |a| a.required = WRITE | READ),
            (AccessDenied::Range, |a| a.len = 13),
            (AccessDenied::Range, |a| a.addr = 0xfff),
            (AccessDenied::Range, |a| a.addr = u64::MAX),
            (AccessDenied::Range, |a| a.len = u64::MAX),
        ];
        for (why, change) in wrong {
            let mut requested = ASKED;
            change(&mut requested);
            assert_eq!(ENTRY.admit(&requested), Err(why), "{requested:?}");
        }
        let window = KeyEntry { qpn: 6, ..ENTRY };
        assert_eq!(window.admit(&ASKED), Err(AccessDenied::Qp));
        assert!(window.admit(&Access { qpn: 6, ..ASKED }).is_ok());
    }

    #[test]
    fn a_range_without_bytes_still_needs_key_domain_and_rights() {
        assert!(ENTRY.admit(&Access { addr: 0x1010, len: 0, ..ASKED }).is_ok());
        assert_eq!(
            ENTRY.admit(&Access { addr: 0x1011, len: 0, ..ASKED }),
            Err(AccessDenied::Range)
        );
        assert_eq!(ENTRY.admit(&Access { len: 0, pd: 9, ..ASKED }), Err(AccessDenied::Domain));
    }

    #[test]
    fn an_entry_that_wraps_around_permits_no_access() {
        let entry = KeyEntry { iova: u64::MAX - 3, len: 8, ..ENTRY };
        assert_eq!(entry.locate(u64::MAX - 2, 1), None);
        let last = KeyEntry { iova: u64::MAX - 8, len: 8, ..ENTRY };
        assert_eq!(last.locate(u64::MAX - 8, 8), Some(0x9000));
    }

    #[test]
    fn a_qp_gives_no_more_than_its_access_flags() {
        assert_eq!(granted_domain(3, READ | WRITE, WRITE), Ok(3));
        assert_eq!(granted_domain(3, READ, 0), Ok(3));
        assert_eq!(granted_domain(3, READ, READ | WRITE), Err(AccessDenied::MissingRight));
    }
}
