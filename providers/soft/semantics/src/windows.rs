//! Memory windows: who may bind and invalidate a window, to which memory, and under which key
//! (ibv_bind_mw(3); IBTA 1.7 10.6.7, 11.2.9).
//!
//! A window of type 1 serves every QP of its protection domain and may be bound again. A window of
//! type 2 (2B) is bound once and serves the QP that bound it, until it is invalidated.

use crate::keys::{AccessibleRange, KeyEntry};
use abi::*;

/// The low bits of a window's key, which the user chooses (ibv_inc_rkey(3)).
pub const USER_BITS: u32 = 8;

/// A request to bind a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The new key of the window.
    pub rkey: u32,
    /// The region's rkey; irrelevant for length 0.
    pub region: u32,
    /// First address, as the region's users name it.
    pub addr: u64,
    /// Length in bytes; 0: unbinds the window (type 1).
    pub len: u64,
    /// `IBV_ACCESS_*` flags.
    pub access: u32,
}

/// The state of a window that its rules need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Whether the window has type 2.
    pub tied: bool,
    /// Protection domain.
    pub pd: u32,
    /// The current or last key.
    pub rkey: u32,
    /// If bound, the QP that the window serves; 0: any.
    pub bound: Option<u32>,
}

/// Why a window operation is refused. The request gets a memory window bind error
/// (IBTA 1.7 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowError {
    /// The upper bits of the key name another window, or none.
    Key,
    /// The window or the region belongs to another protection domain.
    Domain,
    /// A window of type 2 is already bound.
    Bound,
    /// A window of type 2 would be bound to no memory.
    Empty,
    /// The window has type 1, is not bound, or serves another QP.
    NotOurs,
    /// No such region exists.
    Region,
    /// The region permits no windows, or no writable windows.
    MissingRight,
    /// The range exceeds the region.
    Range,
}

impl Window {
    /// The key of this window with the user's bits of `named`.
    #[must_use]
    pub const fn key(&self, named: u32) -> u32 {
        let own = u32::MAX << USER_BITS;
        self.rkey & own | named & !own
    }

    /// Whether a QP of domain `pd` may bind the window this way, before the region is checked.
    ///
    /// # Errors
    /// `Key`, `Domain`, `Bound`, `Empty`.
    pub const fn may_bind(&self, pd: u32, bind: &Bind) -> Result<(), WindowError> {
        if (self.rkey ^ bind.rkey) >> USER_BITS != 0 {
            Err(WindowError::Key)
        } else if self.pd != pd {
            Err(WindowError::Domain)
        } else if self.tied && self.bound.is_some() {
            Err(WindowError::Bound)
        } else if self.tied && bind.len == 0 {
            Err(WindowError::Empty)
        } else {
            Ok(())
        }
    }

    /// Whether QP `qpn` of domain `pd` may invalidate `rkey`.
    ///
    /// # Errors
    /// `Key`, `Domain`, `NotOurs`.
    pub fn may_invalidate(&self, qpn: u32, pd: u32, rkey: u32) -> Result<(), WindowError> {
        if self.rkey != rkey {
            Err(WindowError::Key)
        } else if self.pd != pd {
            Err(WindowError::Domain)
        } else if !self.tied || self.bound != Some(qpn) {
            Err(WindowError::NotOurs)
        } else {
            Ok(())
        }
    }

    /// The QP that the window serves after QP `qpn` has bound it; 0: any.
    #[must_use]
    pub const fn serves(&self, qpn: u32) -> u32 {
        if self.tied { qpn } else { 0 }
    }
}

impl Bind {
    /// The location of the bound memory, if the region permits the binding to a QP of domain `pd`.
    ///
    /// # Errors
    /// `Region`, `Domain`, `MissingRight`, `Range`.
    pub fn part_of(&self, region: &KeyEntry, pd: u32) -> Result<AccessibleRange, WindowError> {
        let changes = self.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
        if region.rkey != self.region {
            return Err(WindowError::Region);
        }
        if region.pd != u64::from(pd) {
            return Err(WindowError::Domain);
        }
        let needed = IBV_ACCESS_MW_BIND | if changes { IBV_ACCESS_LOCAL_WRITE } else { 0 };
        if region.access & needed != needed {
            return Err(WindowError::MissingRight);
        }
        let va = region.locate(self.addr, self.len).ok_or(WindowError::Range)?;
        Ok(AccessibleRange { va, access: region.access })
    }

    /// The address of the window's first byte for its users.
    #[must_use]
    pub const fn iova(&self) -> u64 {
        if self.access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { self.addr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u32 = IBV_ACCESS_REMOTE_READ;
    const WRITE: u32 = IBV_ACCESS_REMOTE_WRITE;
    const BINDABLE: u32 = IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE;
    const TIED: Window = Window { tied: true, pd: 1, rkey: 0x1234_5600, bound: None };
    const FREE: Window = Window { tied: false, ..TIED };
    const BIND: Bind =
        Bind { rkey: 0x1234_5601, region: 0x77, addr: 0x1010, len: 0x10, access: READ };
    const REGION: KeyEntry = KeyEntry {
        rkey: 0x77,
        access: BINDABLE,
        pd: 1,
        qpn: 0,
        iova: 0x1000,
        len: 0x100,
        va: 0x5000,
    };

    /// IBTA 1.7 10.6.7, 11.2.9.
    #[test]
    fn a_window_is_bound_by_its_key_in_its_domain() {
        for window in [TIED, FREE] {
            assert_eq!(window.may_bind(1, &BIND), Ok(()));
            let other = Bind { rkey: BIND.rkey + 256, ..BIND };
            assert_eq!(window.may_bind(1, &other), Err(WindowError::Key));
            assert_eq!(window.may_bind(2, &BIND), Err(WindowError::Domain));
        }
    }

    #[test]
    fn a_window_of_type_2_is_bound_once_and_to_something() {
        let bound = Window { bound: Some(7), ..TIED };
        assert_eq!(bound.may_bind(1, &BIND), Err(WindowError::Bound));
        assert_eq!(TIED.may_bind(1, &Bind { len: 0, ..BIND }), Err(WindowError::Empty));
        // A window of type 1 may be bound again, and to no memory.
        let bound = Window { bound: Some(0), ..FREE };
        assert_eq!(bound.may_bind(1, &BIND), Ok(()));
        assert_eq!(bound.may_bind(1, &Bind { len: 0, ..BIND }), Ok(()));
        assert_eq!((TIED.serves(7), FREE.serves(7)), (7, 0));
    }

    /// IBTA 1.7 10.6.7.
    #[test]
    fn only_the_qp_that_a_window_of_type_2_serves_invalidates_it() {
        let bound = Window { bound: Some(7), ..TIED };
        let rkey = bound.rkey;
        assert_eq!(bound.may_invalidate(7, 1, rkey), Ok(()));
        assert_eq!(bound.may_invalidate(7, 1, rkey + 1), Err(WindowError::Key));
        assert_eq!(bound.may_invalidate(7, 2, rkey), Err(WindowError::Domain));
        assert_eq!(bound.may_invalidate(8, 1, rkey), Err(WindowError::NotOurs));
        assert_eq!(TIED.may_invalidate(7, 1, rkey), Err(WindowError::NotOurs));
        let free = Window { bound: Some(0), ..FREE };
        assert_eq!(free.may_invalidate(0, 1, rkey), Err(WindowError::NotOurs));
    }

    #[test]
    fn a_region_says_what_windows_it_allows() {
        assert_eq!(BIND.part_of(&REGION, 1), Ok(AccessibleRange { va: 0x5010, access: BINDABLE }));
        let of = |region: KeyEntry, bind: Bind| bind.part_of(&region, 1).err();
        let region = |access| KeyEntry { access, ..REGION };
        let changing = Bind { access: WRITE, ..BIND };
        let atomic = Bind { access: IBV_ACCESS_REMOTE_ATOMIC, ..BIND };
        assert_eq!(of(REGION, Bind { region: 0x79, ..BIND }), Some(WindowError::Region));
        assert_eq!(of(KeyEntry { pd: 2, ..REGION }, BIND), Some(WindowError::Domain));
        assert_eq!(of(region(IBV_ACCESS_LOCAL_WRITE), BIND), Some(WindowError::MissingRight));
        assert_eq!(of(region(IBV_ACCESS_MW_BIND), BIND), None, "it reads only");
        assert_eq!(of(region(IBV_ACCESS_MW_BIND), changing), Some(WindowError::MissingRight));
        assert_eq!(of(region(IBV_ACCESS_MW_BIND), atomic), Some(WindowError::MissingRight));
        assert_eq!((of(REGION, changing), of(REGION, atomic)), (None, None));
        assert_eq!(of(REGION, Bind { len: 0xf1, ..BIND }), Some(WindowError::Range));
        assert_eq!(of(REGION, Bind { addr: 0xfff, ..BIND }), Some(WindowError::Range));
        assert_eq!(of(REGION, Bind { addr: u64::MAX, ..BIND }), Some(WindowError::Range));
    }

    #[test]
    fn a_key_is_named_by_its_last_eight_bits() {
        for named in [12, TIED.rkey | 12, 0xffff_ff0c] {
            assert_eq!(TIED.key(named), TIED.rkey | 12);
        }
    }

    #[test]
    fn a_zero_based_window_begins_at_0() {
        assert_eq!(BIND.iova(), BIND.addr);
        assert_eq!(Bind { access: READ | IBV_ACCESS_ZERO_BASED, ..BIND }.iova(), 0);
    }
}
