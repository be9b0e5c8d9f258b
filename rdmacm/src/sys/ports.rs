//! The ports of a host: which process holds which port, at which address.
//! Ids bind here; listeners and port names are visible to all processes of the host.
//!
//! A port is an abstract Unix socket with a name for the port. The kernel gives a name to one
//! socket of a network namespace only, shows the name to every process, and releases the name when
//! the owner ends for any reason. Different users have different names, unless they belong to a
//! group whose members meet over the adapter ([`owner`]).
//!
//! Several ids may have one port at different addresses. A name therefore contains the claim of its
//! owner, and a process that wants the port reads all names of the port.
//!
//! Map of this file: `PortClaim` and its text; names; `Port`; `Block`, consecutive ports under
//! one name; ranges of ports; reservation and exclusive use; listeners; unanswered services; tests.
//! Threads: application threads. Locks: `Blocks`, then the numbers of a block.

use crate::sys::address::{interface, is_any};
use crate::sys::port_range;
use crate::sys::process::owner;
use cface::Errno;
pub(crate) use cface::names::Name;
use cface::sync::Mutex;
use ferroverbs_cm::wire::{PortSpace, ServiceId};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The address part of a binding. The rules are the kernel's (`cma_check_port` and
/// `cma_match_private_data` in Linux' `drivers/infiniband/core/cma.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortClaim {
    address: IpAddr,
    /// The interface of a link-local address; else 0. Equal link-local addresses of two interfaces
    /// are different addresses.
    interface: u32,
    /// An IPv6 wildcard includes IPv4, unless its id is limited to its own family
    /// (`RDMA_OPTION_ID_AFONLY`).
    only_own: bool,
    /// True: ids that also set `RDMA_OPTION_ID_REUSEADDR` may have the same binding.
    shared: bool,
}

impl PortClaim {
    pub(crate) const fn of(address: SocketAddr, only_own: bool, shared: bool) -> Self {
        Self {
            address: address.ip(),
            interface: interface(address),
            only_own: only_own || address.is_ipv4(),
            shared,
        }
    }

    /// Whether the claim accepts requests to an address. Requests contain no interface, because a
    /// device has a link-local address once.
    pub(crate) fn accepts(self, to: IpAddr) -> bool {
        let is_own_family = self.address.is_ipv4() == to.is_ipv4();
        if is_any(self.address) { is_own_family || !self.only_own } else { self.address == to }
    }

    /// The errno for a claim beside another claim on one port; `None`: both fit.
    fn conflict(self, other: Self) -> Option<Errno> {
        let other_family = self.address.is_ipv4() != other.address.is_ipv4();
        if self.shared && other.shared || other_family && self.only_own && other.only_own {
            return None;
        }
        if is_any(self.address) || is_any(other.address) {
            return Some(Errno::from_raw(libc::EADDRNOTAVAIL));
        }
        let is_same = (self.address, self.interface) == (other.address, other.interface);
        is_same.then_some(Errno::from_raw(libc::EADDRINUSE))
    }

    /// The text of the claim in a name.
    fn encode(self) -> String {
        let only = if self.only_own { "o" } else { "" };
        let shared = if self.shared { "s" } else { "" };
        let interface =
            if self.interface == 0 { String::new() } else { format!("%{}", self.interface) };
        format!("{}{interface}/{only}{shared}", encode_address(self.address))
    }

    /// Parses the text of [`PortClaim::encode`].
    fn parse(encode: &str) -> Option<Self> {
        let (address, flags) = encode.split_once('/')?;
        let (address, interface) = match address.split_once('%') {
            Some((address, interface)) => (address, interface.parse().ok()?),
            None => (address, 0),
        };
        let address = match address.parse::<Ipv4Addr>() {
            Ok(v4) => SocketAddr::new(v4.into(), 0),
            Err(_) => {
                let v6 = Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?);
                SocketAddrV6::new(v6, 0, 0, interface).into()
            }
        };
        Some(Self::of(address, flags.contains('o'), flags.contains('s')))
    }

    /// The addresses by which a listener with this claim is found.
    fn listen_addresses(self) -> Vec<String> {
        if !is_any(self.address) {
            return vec![encode_address(self.address)];
        }
        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
            .into_iter()
            .filter(|&any| self.accepts(any))
            .map(encode_address)
            .collect()
    }
}

/// An address in a name; a name has at most 107 bytes.
fn encode_address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("{:x}", u128::from(v6)),
    }
}

/// A name with the owner's prefix.
fn full_name(name: &str) -> String {
    format!("ferroverbs-rdmacm/{}/{name}", owner())
}

/// Takes a name.
///
/// # Errors
/// `EADDRINUSE` another socket has the name; else the errno of the system.
pub(crate) fn claim_name(name: &str) -> Result<Name, Errno> {
    Name::take(&full_name(name))
}

/// Whether a socket has the name.
///
/// # Errors
/// The errno of the system: the state cannot be determined.
pub(crate) fn is_taken(name: &str) -> Result<bool, Errno> {
    cface::names::is_taken(&full_name(name))
}

/// The rest of each name that begins with `stem`, of processes with the same owner in this network
/// namespace.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`. If the kernel shows no names at all, the result is empty.
fn names_with(stem: &str) -> Result<Vec<String>, Errno> {
    let stem = format!(" @ferroverbs-rdmacm/{}/{stem}", owner());
    let table = match std::fs::read("/proc/thread-self/net/unix") {
        Ok(table) => table,
        Err(why) => match why.raw_os_error() {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                return Err(Errno::from_raw(errno));
            }
            _ => return Ok(vec![]),
        },
    };
    let table = String::from_utf8_lossy(&table);
    Ok(table.lines().filter_map(|line| Some(line.split_once(&stem)?.1.to_owned())).collect())
}

/// The time that another process may take to check and take a port.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The host-wide lock for checking and taking a name. Returns None after [`LOCK_TIMEOUT`]: the
/// caller then goes on without the lock.
fn lock_name(name: &str) -> Result<Option<Name>, Errno> {
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match claim_name(&format!("turn/{name}")) {
            Ok(name) => return Ok(Some(name)),
            Err(why) if why.raw() != libc::EADDRINUSE => return Err(why),
            Err(_) if Instant::now() >= end => return Ok(None),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A reserved port of a port space.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    space: PortSpace,
    claim: PortClaim,
    /// The names that hold the port, unless a block holds the port.
    names: Vec<Name>,
    block: Option<Arc<Block>>,
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(block) = &self.block {
            block.set(self.number, None);
        }
    }
}

/// Consecutive automatic ports that one name reserves for this process. Thousands of connections
/// thus need no thousands of descriptors.
#[derive(Debug)]
struct Block {
    space: PortSpace,
    first: u16,
    /// The ports in use, each with its claim.
    used: Mutex<HashMap<u16, PortClaim>>,
    _name: Name,
}

impl Block {
    const LEN: u16 = 64;

    /// A port of the block that neither this process nor another process (by number) uses.
    ///
    /// # Errors
    /// The errno of the system.
    fn reserve(self: &Arc<Self>, claim: PortClaim) -> Result<Option<Port>, Errno> {
        for number in self.first..self.first + Self::LEN {
            let is_used = self.used.lock().contains_key(&number);
            if !is_used && !is_taken(&name(self.space, number))? {
                self.set(number, Some(claim));
                let (space, block) = (self.space, Some(Arc::clone(self)));
                return Ok(Some(Port { number, space, claim, names: vec![], block }));
            }
        }
        Ok(None)
    }

    fn set(&self, number: u16, claim: Option<PortClaim>) {
        let mut used = self.used.lock();
        match claim {
            Some(claim) => used.insert(number, claim),
            None => used.remove(&number),
        };
    }
}

/// The blocks of a process. The last port of a block releases the block.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Vec<Weak<Block>>);

impl Blocks {
    /// Any free port of a space.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` all ports are in use; else the errno of the system.
    fn reserve(&mut self, space: PortSpace, claim: PortClaim, random: u64) -> Result<Port, Errno> {
        self.reserve_of(&PortRanges::of(port_range::dynamic()), space, claim, random)
    }

    fn reserve_of(
        &mut self,
        ranges: &PortRanges,
        space: PortSpace,
        claim: PortClaim,
        random: u64,
    ) -> Result<Port, Errno> {
        self.0.retain(|block| block.strong_count() > 0);
        let own = self.0.iter().filter_map(Weak::upgrade).filter(|block| block.space == space);
        for block in own.rev() {
            if let Some(port) = block.reserve(claim)? {
                return Ok(port);
            }
        }
        for first in ranges.blocks(random) {
            let name = match claim_name(&block_name(space, first)) {
                Ok(name) => name,
                Err(why) if why.raw() == libc::EADDRINUSE => continue,
                Err(why) => return Err(why),
            };
            let block = Arc::new(Block { space, first, used: Mutex::default(), _name: name });
            if let Some(port) = block.reserve(claim)? {
                self.0.push(Arc::downgrade(&block));
                return Ok(port);
            }
        }
        reserve_single(space, claim, ranges.singles(random), random)
    }

    /// The claims on a port among the automatic ports of this process.
    fn claims(&self, space: PortSpace, port: u16) -> impl Iterator<Item = PortClaim> {
        let blocks = self.0.iter().filter_map(Weak::upgrade);
        blocks.filter(move |block| block.space == space).filter_map(move |block| {
            let used = block.used.lock();
            used.get(&port).copied()
        })
    }
}

/// The division of the range of automatic ports.
#[derive(Debug)]
struct PortRanges {
    range: RangeInclusive<u16>,
    /// The ports in blocks. A block begins at a multiple of its length, so blocks of two processes
    /// with different ranges do not overlap. The remaining ports have one owner each, for processes
    /// that find all blocks taken.
    blocks: Range<u32>,
}

impl PortRanges {
    /// Blocks cover three quarters of the range.
    fn of(range: RangeInclusive<u16>) -> Self {
        let (first, last) = (u32::from(*range.start()), u32::from(*range.end()));
        let len = u32::from(Block::LEN);
        let end = first + (last + 1 - first) / 4 * 3;
        let begin = first.next_multiple_of(len);
        let count = end.saturating_sub(begin) / len;
        Self { range, blocks: begin..begin + count * len }
    }

    /// The first ports of all blocks, from a random start.
    fn blocks(&self, random: u64) -> impl Iterator<Item = u16> {
        let (first, len) = (self.blocks.start, u32::from(Block::LEN));
        let count = (self.blocks.end - first) / len;
        rotated(count, random).filter_map(move |at| u16::try_from(first + at * len).ok())
    }

    /// The ports outside of blocks, from a random start.
    fn singles(&self, random: u64) -> impl Iterator<Item = u16> {
        let (first, last) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let all = rotated(last + 1 - first, random).map(move |at| first + at);
        all.filter(|port| !self.blocks.contains(port)).filter_map(|port| u16::try_from(port).ok())
    }
}

/// The numbers below `count`, from a random start.
fn rotated(count: u32, random: u64) -> impl Iterator<Item = u32> {
    let at = (random % u64::from(count.max(1))) as u32;
    (at..count).chain(0..at)
}

/// A free port among `numbers`, held by names of its own.
///
/// # Errors
/// `EADDRNOTAVAIL` all ports are in use; else the errno of the system.
fn reserve_single(
    space: PortSpace,
    claim: PortClaim,
    numbers: impl Iterator<Item = u16>,
    random: u64,
) -> Result<Port, Errno> {
    for number in numbers {
        let stem = name(space, number);
        // A process that asks for this port by number checks and takes the port under the same
        // lock.
        let _name_lock = lock_name(&stem)?;
        // A process with another range may have a block over this port.
        if is_taken(&block_name(space, number - number % Block::LEN))?
            || !claims_by_number(&stem)?.is_empty()
        {
            continue;
        }
        let full_name = match claim_name(&stem) {
            Ok(full_name) => full_name,
            Err(why) if why.raw() == libc::EADDRINUSE => continue,
            Err(why) => return Err(why),
        };
        let names = vec![take_claim_name(&stem, claim, random)?, full_name];
        return Ok(Port { number, space, claim, names, block: None });
    }
    Err(Errno::from_raw(libc::EADDRNOTAVAIL))
}

/// The name of the block that begins with a port.
fn block_name(space: PortSpace, first: u16) -> String {
    format!("ports/{:#x}/{first}", space as u16)
}

/// The stem of the names of a port that is bound by number. The stem alone marks the port as taken
/// for processes that look for an automatic port.
fn name(space: PortSpace, port: u16) -> String {
    format!("port/{:#x}/{port}", space as u16)
}

impl Port {
    /// Reserves `port` for `claim`, or any free port for 0. An automatic port of another process is
    /// not detected; but two ids cannot listen to one port.
    ///
    /// # Errors
    /// As the kernel's manager: `EADDRINUSE` another id has the port at the same address;
    /// `EADDRNOTAVAIL` another id has the port, and one of the two claims a wildcard, or all ports
    /// are in use.
    pub(crate) fn reserve(
        blocks: &Mutex<Blocks>,
        space: PortSpace,
        port: u16,
        claim: PortClaim,
        random: u64,
    ) -> Result<Self, Errno> {
        let mut blocks = blocks.lock();
        if port == 0 {
            return blocks.reserve(space, claim, random);
        }
        let stem = name(space, port);
        let _name_lock = lock_name(&stem)?;
        let others = blocks.claims(space, port).chain(claims_by_number(&stem)?);
        if let Some(why) = others.filter_map(|other| claim.conflict(other)).next() {
            return Err(why);
        }
        let mut names = vec![take_claim_name(&stem, claim, random)?];
        if port_range::dynamic().contains(&port) {
            // Another process may hold the name for a claim at another address.
            match claim_name(&stem) {
                Ok(name) => names.push(name),
                Err(why) if why.raw() == libc::EADDRINUSE => {}
                Err(why) => return Err(why),
            }
        }
        Ok(Self { number: port, space, claim, names, block: None })
    }

    /// Makes the claim of a listener exclusive: a listener does not share its port, even with
    /// `RDMA_OPTION_ID_REUSEADDR`.
    ///
    /// # Errors
    /// As [`Port::reserve`].
    pub(crate) fn make_exclusive(
        &mut self,
        blocks: &Mutex<Blocks>,
        random: u64,
    ) -> Result<(), Errno> {
        if !self.claim.shared {
            return Ok(());
        }
        let blocks = blocks.lock();
        let exclusive = PortClaim { shared: false, ..self.claim };
        let stem = name(self.space, self.number);
        let _name_lock = lock_name(&stem)?;
        let others = blocks.claims(self.space, self.number).chain(claims_by_number(&stem)?);
        let conflicts: Vec<_> = others.filter_map(|other| exclusive.conflict(other)).collect();
        // One refusal is from the port's own name, by the same address.
        if conflicts.len() > 1 {
            let is_other = |why: &&Errno| why.raw() == libc::EADDRNOTAVAIL;
            return Err(conflicts
                .iter()
                .find(is_other)
                .map_or(Errno::from_raw(libc::EADDRINUSE), |why| *why));
        }
        self.set_claim(exclusive, random)
    }

    /// Allows other ids with the same option to have the same binding.
    ///
    /// # Errors
    /// The errno of the system.
    pub(crate) fn share(&mut self, random: u64) -> Result<(), Errno> {
        self.set_claim(PortClaim { shared: true, ..self.claim }, random)
    }

    /// Limits the claim to its own family, or lifts the limit. As in the kernel, existing claims
    /// are not checked.
    ///
    /// # Errors
    /// The errno of the system.
    pub(crate) fn keep_to_own_family(&mut self, only: bool, random: u64) -> Result<(), Errno> {
        let only_own = only || self.claim.address.is_ipv4();
        self.set_claim(PortClaim { only_own, ..self.claim }, random)
    }

    /// Replaces the claim in the name or block.
    fn set_claim(&mut self, claim: PortClaim, random: u64) -> Result<(), Errno> {
        match (&self.block, self.names.first_mut()) {
            (Some(block), _) => block.set(self.number, Some(claim)),
            (None, Some(first)) => {
                *first = take_claim_name(&name(self.space, self.number), claim, random)?
            }
            (None, None) => {}
        }
        self.claim = claim;
        Ok(())
    }
}

/// Takes a name for a port. A number at the end distinguishes equal claims.
fn take_claim_name(stem: &str, claim: PortClaim, random: u64) -> Result<Name, Errno> {
    take_numbered(&format!("{stem}/{}/", claim.encode()), random)
}

/// Takes a name that ends with an unused number.
fn take_numbered(stem: &str, random: u64) -> Result<Name, Errno> {
    for step in 0..u32::MAX {
        let own = (random as u32).wrapping_add(step);
        match claim_name(&format!("{stem}{own:x}")) {
            Err(why) if why.raw() == libc::EADDRINUSE => {}
            done => return done,
        }
    }
    Err(Errno::from_raw(libc::EADDRINUSE))
}

/// The claims on a port that is bound by number.
fn claims_by_number(stem: &str) -> Result<Vec<PortClaim>, Errno> {
    let names = names_with(&format!("{stem}/"))?;
    Ok(names.iter().filter_map(|name| PortClaim::parse(name.rsplit_once('/')?.0)).collect())
}

fn listen_stem(service: ServiceId) -> String {
    format!("listen/{:#x}", service.0)
}

/// Takes the names by which requests for a service find this process.
///
/// # Errors
/// As [`Port::reserve`], if another process listens to the service.
pub(crate) fn listen(service: ServiceId, claim: PortClaim) -> Result<Vec<Name>, Errno> {
    let stem = listen_stem(service);
    let _name_lock = lock_name(&stem)?;
    let exclusive = PortClaim { shared: false, ..claim };
    let others = names_with(&format!("{stem}/"))?;
    // The option of a listener to one address was checked when its id was bound.
    let others = others.iter().filter_map(|address| PortClaim::parse(&format!("{address}/o")));
    if let Some(why) = others.filter_map(|other| exclusive.conflict(other)).next() {
        return Err(why);
    }
    claim
        .listen_addresses()
        .iter()
        .map(|address| claim_name(&format!("{stem}/{address}")))
        .collect()
}

/// Whether a process of this host listens to a service at an address.
///
/// # Errors
/// The errno of the system: the state cannot be determined.
pub(crate) fn is_listened_to(service: ServiceId, to: IpAddr) -> Result<bool, Errno> {
    let any =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    for address in [any, to] {
        if is_taken(&format!("{}/{}", listen_stem(service), encode_address(address)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The stem of names that announce unanswered requests for a service whose listener is gone.
fn unanswered_stem(service: ServiceId) -> String {
    format!("owes/{:#x}/", service.0)
}

/// Announces that this process still has unanswered requests for a service to which it no longer
/// listens.
///
/// # Errors
/// The errno of the system.
pub(crate) fn announce_unanswered(service: ServiceId, random: u64) -> Result<Name, Errno> {
    take_numbered(&unanswered_stem(service), random)
}

/// The services with such an announcement of a process of this host.
///
/// # Errors
/// The errno of the system: the state cannot be determined.
pub(crate) fn unanswered_services() -> Result<Vec<ServiceId>, Errno> {
    let service = |name: &String| {
        let (service, _) = name.strip_prefix("0x")?.split_once('/')?;
        u64::from_str_radix(service, 16).ok().map(ServiceId)
    };
    Ok(names_with("owes/")?.iter().filter_map(service).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_USE: Result<u16, Errno> = Err(Errno::from_raw(libc::EADDRINUSE));
    const NOT_AVAILABLE: Result<u16, Errno> = Err(Errno::from_raw(libc::EADDRNOTAVAIL));

    fn claim(address: &str) -> PortClaim {
        let bracketed =
            if address.contains(':') { format!("[{address}]:0") } else { format!("{address}:0") };
        PortClaim::of(bracketed.parse().expect("an address"), false, false)
    }

    #[test]
    fn a_name_says_what_its_owner_wants() {
        for address in ["10.0.0.1", "0.0.0.0", "::", "fd99::1", "fe80::1%3"] {
            let first = claim(address);
            for claim in
                [first, PortClaim { only_own: true, ..first }, PortClaim { shared: true, ..first }]
            {
                assert_eq!(PortClaim::parse(&claim.encode()), Some(claim), "{address}");
            }
        }
    }

    #[test]
    fn a_link_local_address_at_two_interfaces_is_two_addresses() {
        let [two, three] = ["fe80::1%2", "fe80::1%3"].map(claim);
        assert_eq!(two.conflict(three), None);
        assert_eq!(two.conflict(two), Some(Errno::from_raw(libc::EADDRINUSE)));
        assert_eq!(two.conflict(claim("::")), Some(Errno::from_raw(libc::EADDRNOTAVAIL)));
    }

    #[test]
    fn a_port_is_one_owners_until_it_is_dropped() {
        let blocks = Mutex::default();
        let reserve = |port| Port::reserve(&blocks, PortSpace::Tcp, port, claim("::"), 1);
        let any = reserve(0).expect("one is free");
        let chosen = any.number;
        for first in [any, reserve(chosen + 1).expect("nobody has it")] {
            let again = reserve(first.number).map(|port| port.number);
            assert_eq!(again, NOT_AVAILABLE);
            let number = first.number;
            drop(first);
            assert!(reserve(number).is_ok());
        }
    }

    #[test]
    fn ids_at_different_addresses_have_one_port_and_those_that_meet_have_not() {
        // The two sets of blocks stand for two processes.
        let (blocks, others) = (Mutex::default(), Mutex::default());
        let space = PortSpace::Ib;
        let number = {
            let any = Port::reserve(&blocks, space, 0, claim("10.0.0.1"), 3).expect("free");
            any.number
        };
        let first = Port::reserve(&blocks, space, number, claim("10.0.0.1"), 3).expect("free");
        let only = |address: &str| PortClaim { only_own: true, ..claim(address) };
        for blocks in [&blocks, &others] {
            let reserve =
                |claim| Port::reserve(blocks, space, number, claim, 3).map(|port| port.number);
            for address in ["10.0.0.2", "fe80::1"] {
                assert_eq!(reserve(claim(address)), Ok(number), "{address}");
            }
            assert_eq!(reserve(claim("10.0.0.1")), IN_USE);
            for address in ["0.0.0.0", "127.0.0.1", "::"] {
                assert_eq!(reserve(claim(address)), NOT_AVAILABLE, "{address}");
            }
            assert_eq!(reserve(only("::")), Ok(number));
        }
        drop(first);
        let six = Port::reserve(&blocks, space, number, only("::"), 3).expect("free");
        let reserve =
            |claim| Port::reserve(&others, space, number, claim, 3).map(|port| port.number);
        assert_eq!(reserve(claim("0.0.0.0")), Ok(number));
        assert_eq!(reserve(claim("fe80::1")), NOT_AVAILABLE);
        drop(six);
        assert_eq!(reserve(claim("fe80::1")), Ok(number));
    }

    #[test]
    fn those_who_share_an_address_share_it_until_one_listens() {
        let blocks = Mutex::default();
        let shared = PortClaim { shared: true, ..claim("10.0.0.1") };
        let reserve = |port, claim| Port::reserve(&blocks, PortSpace::Udp, port, claim, 9);
        let number = reserve(0, shared).expect("free").number;
        let mut first = reserve(number, shared).expect("free");
        assert_eq!(reserve(number, claim("10.0.0.1")).map(|port| port.number), IN_USE);
        let second = reserve(number, shared).expect("both share");
        assert_eq!(first.make_exclusive(&blocks, 9), Err(Errno::from_raw(libc::EADDRINUSE)));
        drop(second);
        assert_eq!(first.make_exclusive(&blocks, 9), Ok(()));
        assert_eq!(reserve(number, shared).map(|port| port.number), IN_USE, "it listens");
    }

    #[test]
    fn thousands_of_ports_need_few_descriptors_and_are_all_different() {
        let blocks = Mutex::default();
        let any = |port| Port::reserve(&blocks, PortSpace::Udp, port, claim("::"), 5);
        let reserve = |port| any(port).expect("free");
        let first = reserve(0);
        // A port in the middle of the block is bound by number.
        let second = reserve(first.number + 1);
        let all: Vec<_> = (0..1000).map(|_| reserve(0)).collect();
        let numbers: std::collections::BTreeSet<_> = all.iter().map(|port| port.number).collect();
        assert_eq!(numbers.len(), 1000);
        assert!(!numbers.contains(&second.number) && !numbers.contains(&first.number));
        assert!(blocks.lock().0.len() <= 1000 / 64 + 2);
        drop((all, first));
        reserve(0);
        assert_eq!(blocks.lock().0.len(), 1, "blocks without ports are gone");
    }

    #[test]
    fn a_range_is_blocks_and_for_the_rest_single_ports() {
        let counts = |ranges: &PortRanges| (ranges.blocks(5).count(), ranges.singles(5).count());
        assert_eq!(counts(&PortRanges::of(32768..=60999)), (330, 7112));
        let all = PortRanges::of(1..=u16::MAX);
        let (blocks, singles) = counts(&all);
        assert_eq!(blocks * 64 + singles, 65535);
        assert_eq!((all.blocks(0).next(), all.singles(0).last()), (Some(64), Some(65535)));
        assert_eq!(counts(&PortRanges::of(40_001..=40_010)), (0, 10));
    }

    #[test]
    fn more_processes_than_there_are_blocks_have_a_port_each() {
        // The range differs for each run, so that another run of this test does not collide.
        let first = 2048 + (std::process::id() % 100) as u16 * 256;
        let ranges = PortRanges::of(first..=first + 255);
        let space = PortSpace::IpOverIb;
        assert_eq!((ranges.blocks(0).count(), ranges.singles(0).count()), (3, 64));
        let one_more = || {
            let mut process = Blocks::default();
            process.reserve_of(&ranges, space, claim("::"), 77)
        };
        let mut all: Vec<_> = (0..3 + 64).map(|_| one_more().expect("free")).collect();
        let numbers: std::collections::BTreeSet<_> = all.iter().map(|port| port.number).collect();
        assert_eq!(numbers.len(), all.len(), "all are different");
        assert_eq!(one_more().map(|port| port.number), NOT_AVAILABLE);
        let last = all.pop().expect("the last one").number;
        assert_eq!(one_more().map(|port| port.number), Ok(last));
        // A bind by number finds the automatic owner of the port.
        let single = all.last().expect("another one").number;
        let blocks = Mutex::default();
        let asked = Port::reserve(&blocks, space, single, claim("::"), 77);
        assert_eq!(asked.map(|port| port.number), NOT_AVAILABLE);
    }

    #[test]
    fn a_listener_is_seen_while_it_listens() {
        let service = ServiceId(0xfeed_0000_0000_0000 | u64::from(std::process::id()));
        let seen = |address: &str| is_listened_to(service, address.parse().expect("an address"));
        assert_eq!(seen("10.0.0.1"), Ok(false));
        let name = listen(service, claim("10.0.0.1")).expect("nobody does");
        assert_eq!(
            (seen("10.0.0.1"), seen("10.0.0.2"), seen("::1")),
            (Ok(true), Ok(false), Ok(false))
        );
        assert!(
            listen(service, claim("10.0.0.1")).is_err() && listen(service, claim("::")).is_err()
        );
        let six = PortClaim { only_own: true, ..claim("::") };
        let beside =
            [claim("10.0.0.2"), six].map(|claim| listen(service, claim).expect("nobody does"));
        assert_eq!((seen("10.0.0.2"), seen("fe80::1")), (Ok(true), Ok(true)));
        drop((name, beside));
        let both = listen(service, claim("::")).expect("nobody does");
        assert_eq!((seen("10.0.0.1"), seen("fe80::1")), (Ok(true), Ok(true)));
        drop(both);
        assert_eq!((seen("10.0.0.1"), seen("::1")), (Ok(false), Ok(false)));
    }
}
