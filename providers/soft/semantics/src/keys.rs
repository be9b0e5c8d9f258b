//! What a key opens, and to whom: ranges, rights, protection domains, and the QP that a window is for (IBTA vol 1, 10.6 and 9.7.4.1).

/// An entry of a region table, of a region or a bound window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key that is good now.
    pub rkey: u32,
    /// `IBV_ACCESS_*` flags, and marks of the table's owner.
    pub access: u32,
    /// Protection domain.
    pub pd: u64,
    /// The QP that a window is bound to; 0: any.
    pub qpn: u32,
    /// The address by which users of the key name its first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Where the first byte is, in the owner's address space.
    pub va: u64,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The key that the request names.
    pub rkey: u32,
    /// The owner's QP through which it is asked for.
    pub qpn: u32,
    /// Its protection domain.
    pub pd: u32,
    /// First byte, as the request names it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// `IBV_ACCESS_*` flags that it takes.
    pub need: u32,
}

/// Where the bytes are that a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Address in the owner's process.
    pub va: u64,
    /// As of the [`Entry`].
    pub access: u32,
}

/// Why a key does not open what is asked for. All of it is one refusal to who asked (IBTA vol 1, table 57: remote access error).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// There is no such key, or no more.
    Key,
    /// It is one of another protection domain.
    Domain,
    /// A right is missing.
    Right,
    /// Some byte is outside.
    Range,
    /// The window is for another QP.
    Qp,
}

impl Entry {
    /// Where the bytes are that `asked` names, if the key opens them.
    ///
    /// # Errors
    /// The first rule that forbids it, in the order of [`Barred`].
    #[inline]
    pub const fn admit(&self, asked: &Access) -> Result<Found, Barred> {
        if self.rkey != asked.rkey {
            return Err(Barred::Key);
        }
        if self.pd != asked.pd as u64 {
            return Err(Barred::Domain);
        }
        if self.access & asked.need != asked.need {
            return Err(Barred::Right);
        }
        let Some(va) = self.at(asked.addr, asked.len) else { return Err(Barred::Range) };
        if self.qpn != 0 && self.qpn != asked.qpn {
            return Err(Barred::Qp);
        }
        Ok(Found { va, access: self.access })
    }

    /// Where `len` bytes at `addr` are, if all are within. An entry that goes round the end of the address space has none.
    #[inline]
    pub const fn at(&self, addr: u64, len: u64) -> Option<u64> {
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

/// What a QP lets its peer do: the protection domain in which keys are looked up, if it gives the rights that `need` names.
///
/// # Errors
/// `Right` it does not.
#[inline]
pub const fn through(qp_pd: u32, qp_access: u32, need: u32) -> Result<u32, Barred> {
    if qp_access & need == need { Ok(qp_pd) } else { Err(Barred::Right) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u32 = abi::IBV_ACCESS_REMOTE_READ;
    const WRITE: u32 = abi::IBV_ACCESS_REMOTE_WRITE;
    const ENTRY: Entry =
        Entry { rkey: 7, access: READ, pd: 1, qpn: 0, iova: 0x1000, len: 16, va: 0x9000 };
    const ASKED: Access = Access { rkey: 7, qpn: 5, pd: 1, addr: 0x1004, len: 12, need: READ };

    #[test]
    fn a_key_opens_its_bytes_and_each_rule_forbids_on_its_own() {
        assert_eq!(ENTRY.admit(&ASKED), Ok(Found { va: 0x9004, access: READ }));
        type Change = fn(&mut Access);
        let wrong: [(Barred, Change); 8] = [
            (Barred::Key, |a| a.rkey = 8),
            (Barred::Domain, |a| a.pd = 2),
            (Barred::Right, |a| a.need = WRITE),
            (Barred::Right, |a| a.need = WRITE | READ),
            (Barred::Range, |a| a.len = 13),
            (Barred::Range, |a| a.addr = 0xfff),
            (Barred::Range, |a| a.addr = u64::MAX),
            (Barred::Range, |a| a.len = u64::MAX),
        ];
        for (why, change) in wrong {
            let mut asked = ASKED;
            change(&mut asked);
            assert_eq!(ENTRY.admit(&asked), Err(why), "{asked:?}");
        }
        let window = Entry { qpn: 6, ..ENTRY };
        assert_eq!(window.admit(&ASKED), Err(Barred::Qp));
        assert!(window.admit(&Access { qpn: 6, ..ASKED }).is_ok());
    }

    #[test]
    fn nothing_is_asked_for_with_no_bytes_but_the_rest_counts() {
        assert!(ENTRY.admit(&Access { addr: 0x1010, len: 0, ..ASKED }).is_ok());
        assert_eq!(ENTRY.admit(&Access { addr: 0x1011, len: 0, ..ASKED }), Err(Barred::Range));
        assert_eq!(ENTRY.admit(&Access { len: 0, pd: 9, ..ASKED }), Err(Barred::Domain));
    }

    #[test]
    fn an_entry_that_goes_round_the_end_of_the_address_space_opens_nothing() {
        let entry = Entry { iova: u64::MAX - 3, len: 8, ..ENTRY };
        assert_eq!(entry.at(u64::MAX - 2, 1), None);
        let last = Entry { iova: u64::MAX - 8, len: 8, ..ENTRY };
        assert_eq!(last.at(u64::MAX - 8, 8), Some(0x9000));
    }

    #[test]
    fn a_qp_gives_no_more_than_its_access_flags() {
        assert_eq!(through(3, READ | WRITE, WRITE), Ok(3));
        assert_eq!(through(3, READ, 0), Ok(3));
        assert_eq!(through(3, READ, READ | WRITE), Err(Barred::Right));
    }
}
