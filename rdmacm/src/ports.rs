//! Who has which port, among the processes of a host.
//!
//! A port is an abstract Unix socket of that name: the kernel gives a name to one socket of a network namespace only, anybody can see whether
//! it is taken, and it is free when its owner is gone, however that came. Users do not share names, unless they are of a group whose members meet over the adapter
//! ([`owner`]).
//!
//! Several may have one port, at different addresses. So its names say what their owners want, and who wants it reads them all.

use crate::address::{interface, is_any};
use crate::owner::owner;
use crate::range;
use cface::Errno;
pub(crate) use cface::names::Name;
use cface::sync::Mutex;
use ferroverbs_cm::wire::{PortSpace, ServiceId};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// To what an id is bound beside its port. The rules are the kernel's (`cma_check_port` and `cma_match_private_data` in Linux'
/// `drivers/infiniband/core/cma.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    address: IpAddr,
    /// The interface of a link-local address; else 0. One such address at two interfaces is two.
    interface: u32,
    /// An IPv6 wildcard is IPv4's, too, unless its id wants its own family only (`RDMA_OPTION_ID_AFONLY`).
    only_own: bool,
    /// Others that say so, too, may be bound to the same (`RDMA_OPTION_ID_REUSEADDR`).
    shared: bool,
}

impl Claim {
    pub(crate) const fn of(address: SocketAddr, only_own: bool, shared: bool) -> Self {
        Self {
            address: address.ip(),
            interface: interface(address),
            only_own: only_own || address.is_ipv4(),
            shared,
        }
    }

    /// Whether requests to an address are its. They say no interface: a device has a link-local address once.
    pub(crate) fn takes(self, to: IpAddr) -> bool {
        let is_own_family = self.address.is_ipv4() == to.is_ipv4();
        if is_any(self.address) { is_own_family || !self.only_own } else { self.address == to }
    }

    /// Why it cannot be beside another one at one port; `None`: it can.
    fn refusal(self, other: Self) -> Option<Errno> {
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

    /// How a name says it, with all of it.
    fn word(self) -> String {
        let only = if self.only_own { "o" } else { "" };
        let shared = if self.shared { "s" } else { "" };
        let interface =
            if self.interface == 0 { String::new() } else { format!("%{}", self.interface) };
        format!("{}{interface}/{only}{shared}", spelled(self.address))
    }

    /// What a name says that ends with [`Claim::word`].
    fn parse(word: &str) -> Option<Self> {
        let (address, flags) = word.split_once('/')?;
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

    /// What its listener is found by.
    fn places(self) -> Vec<String> {
        if !is_any(self.address) {
            return vec![spelled(self.address)];
        }
        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
            .into_iter()
            .filter(|&any| self.takes(any))
            .map(spelled)
            .collect()
    }
}

/// An address in a name, which may have 107 bytes in all.
fn spelled(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("{:x}", u128::from(v6)),
    }
}

/// A name with that of its owner in front.
pub(crate) fn whole(name: &str) -> String {
    format!("ferroverbs-rdmacm/{}/{name}", owner())
}

/// Takes a name.
///
/// # Errors
/// `EADDRINUSE` somebody has it; the system's.
pub(crate) fn take(name: &str) -> Result<Name, Errno> {
    Name::take(&whole(name))
}

/// Whether somebody has a name.
///
/// # Errors
/// The system's: it cannot be seen.
pub(crate) fn is_taken(name: &str) -> Result<bool, Errno> {
    cface::names::is_taken(&whole(name))
}

/// What follows `stem` in the names that processes with the same owner have in this network namespace.
///
/// # Errors
/// Descriptors or memory are lacking. Where the kernel shows no names, nobody has any.
fn behind(stem: &str) -> Result<Vec<String>, Errno> {
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

/// How long another process may take to look who has a port, and to take it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The right to look who has a port and to take it, which one process has at a time, as far as that can be had.
fn turn(what: &str) -> Result<Option<Name>, Errno> {
    let end = Instant::now() + PATIENCE;
    loop {
        match take(&format!("turn/{what}")) {
            Ok(name) => return Ok(Some(name)),
            Err(why) if why.raw() != libc::EADDRINUSE => return Err(why),
            Err(_) if Instant::now() >= end => return Ok(None),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A port of a space, reserved.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    space: PortSpace,
    claim: Claim,
    /// What it is held by, if not by a block.
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

/// Ports in a row for those who do not care, which are one process's by one name: thousands of connections do not need thousands of descriptors.
#[derive(Debug)]
struct Block {
    space: PortSpace,
    first: u16,
    /// Those that are in use, and by whom.
    used: Mutex<HashMap<u16, Claim>>,
    _name: Name,
}

impl Block {
    const LEN: u16 = 64;

    /// A port of it that nobody has, this process or another one by its number.
    ///
    /// # Errors
    /// The system's.
    fn reserve(self: &Arc<Self>, claim: Claim) -> Result<Option<Port>, Errno> {
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

    fn set(&self, number: u16, claim: Option<Claim>) {
        let mut used = self.used.lock();
        match claim {
            Some(claim) => used.insert(number, claim),
            None => used.remove(&number),
        };
    }
}

/// The blocks of a process. One is given back with the last of its ports.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Vec<Weak<Block>>);

impl Blocks {
    /// Any port of a space.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` all are in use; the system's.
    fn reserve(&mut self, space: PortSpace, claim: Claim, random: u64) -> Result<Port, Errno> {
        self.reserve_of(&Pieces::of(range::dynamic()), space, claim, random)
    }

    fn reserve_of(
        &mut self,
        pieces: &Pieces,
        space: PortSpace,
        claim: Claim,
        random: u64,
    ) -> Result<Port, Errno> {
        self.0.retain(|block| block.strong_count() > 0);
        let own = self.0.iter().filter_map(Weak::upgrade).filter(|block| block.space == space);
        for block in own.rev() {
            if let Some(port) = block.reserve(claim)? {
                return Ok(port);
            }
        }
        for first in pieces.blocks(random) {
            let name = match take(&block_name(space, first)) {
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
        single(space, claim, pieces.singles(random), random)
    }

    /// Who has a port as one of those.
    fn owners(&self, space: PortSpace, port: u16) -> impl Iterator<Item = Claim> {
        let blocks = self.0.iter().filter_map(Weak::upgrade);
        blocks.filter(move |block| block.space == space).filter_map(move |block| {
            let used = block.used.lock();
            used.get(&port).copied()
        })
    }
}

/// What ports for those who do not care are given out by.
#[derive(Debug)]
struct Pieces {
    range: RangeInclusive<u16>,
    /// The ports in blocks. A block begins at a multiple of its length, so that no two overlap, even if two processes know different ranges. The rest are ports for
    /// one owner each, for when all blocks are processes', which may need one port each.
    blocks: Range<u32>,
}

impl Pieces {
    /// Three quarters of a range are blocks.
    fn of(range: RangeInclusive<u16>) -> Self {
        let (first, last) = (u32::from(*range.start()), u32::from(*range.end()));
        let len = u32::from(Block::LEN);
        let end = first + (last + 1 - first) / 4 * 3;
        let begin = first.next_multiple_of(len);
        let count = end.saturating_sub(begin) / len;
        Self { range, blocks: begin..begin + count * len }
    }

    /// The first ports of all blocks, from somewhere on.
    fn blocks(&self, random: u64) -> impl Iterator<Item = u16> {
        let (first, len) = (self.blocks.start, u32::from(Block::LEN));
        let count = (self.blocks.end - first) / len;
        turned(count, random).filter_map(move |at| u16::try_from(first + at * len).ok())
    }

    /// All other ports, likewise.
    fn singles(&self, random: u64) -> impl Iterator<Item = u16> {
        let (first, last) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let all = turned(last + 1 - first, random).map(move |at| first + at);
        all.filter(|port| !self.blocks.contains(port)).filter_map(|port| u16::try_from(port).ok())
    }
}

/// The numbers below `count`, from somewhere on.
fn turned(count: u32, random: u64) -> impl Iterator<Item = u32> {
    let at = (random % u64::from(count.max(1))) as u32;
    (at..count).chain(0..at)
}

/// One of `numbers` that nobody has, by names of its own.
///
/// # Errors
/// `EADDRNOTAVAIL` all are in use; the system's.
fn single(
    space: PortSpace,
    claim: Claim,
    numbers: impl Iterator<Item = u16>,
    random: u64,
) -> Result<Port, Errno> {
    for number in numbers {
        let stem = name(space, number);
        // Whoever asks for it by its number looks and takes under this right.
        let _turn = turn(&stem)?;
        // A block of a process that knows another range.
        if is_taken(&block_name(space, number - number % Block::LEN))?
            || !by_number(&stem)?.is_empty()
        {
            continue;
        }
        let whole = match take(&stem) {
            Ok(whole) => whole,
            Err(why) if why.raw() == libc::EADDRINUSE => continue,
            Err(why) => return Err(why),
        };
        let names = vec![hold(&stem, claim, random)?, whole];
        return Ok(Port { number, space, claim, names, block: None });
    }
    Err(Errno::from_raw(libc::EADDRNOTAVAIL))
}

/// The name of the block that begins with a port.
fn block_name(space: PortSpace, first: u16) -> String {
    format!("ports/{:#x}/{first}", space as u16)
}

/// What the names of a port that was asked for by its number begin with, and the whole name of one in the range of blocks, for who looks for a free one.
fn name(space: PortSpace, port: u16) -> String {
    format!("port/{:#x}/{port}", space as u16)
}

impl Port {
    /// Reserves `port` for what `claim` says, or any if it is 0. That another process has it as one of those that nobody asked for is not seen; two cannot
    /// listen to it.
    ///
    /// # Errors
    /// As the kernel's manager: `EADDRINUSE` somebody has it at the same address; `EADDRNOTAVAIL` somebody has it, and one of the two means all addresses; all
    /// are in use.
    pub(crate) fn reserve(
        blocks: &Mutex<Blocks>,
        space: PortSpace,
        port: u16,
        claim: Claim,
        random: u64,
    ) -> Result<Self, Errno> {
        let mut blocks = blocks.lock();
        if port == 0 {
            return blocks.reserve(space, claim, random);
        }
        let stem = name(space, port);
        let _turn = turn(&stem)?;
        let others = blocks.owners(space, port).chain(by_number(&stem)?);
        if let Some(why) = others.filter_map(|other| claim.refusal(other)).next() {
            return Err(why);
        }
        let mut names = vec![hold(&stem, claim, random)?];
        if range::dynamic().contains(&port) {
            // Somebody else's at another address, perhaps.
            match take(&stem) {
                Ok(name) => names.push(name),
                Err(why) if why.raw() == libc::EADDRINUSE => {}
                Err(why) => return Err(why),
            }
        }
        Ok(Self { number: port, space, claim, names, block: None })
    }

    /// Who listens has the port alone, whatever was said before.
    ///
    /// # Errors
    /// As [`Port::reserve`].
    pub(crate) fn keep(&mut self, blocks: &Mutex<Blocks>, random: u64) -> Result<(), Errno> {
        if !self.claim.shared {
            return Ok(());
        }
        let blocks = blocks.lock();
        let alone = Claim { shared: false, ..self.claim };
        let stem = name(self.space, self.number);
        let _turn = turn(&stem)?;
        let others = blocks.owners(self.space, self.number).chain(by_number(&stem)?);
        let refusals: Vec<_> = others.filter_map(|other| alone.refusal(other)).collect();
        // One of them is its own, by the same address.
        if refusals.len() > 1 {
            let is_other = |why: &&Errno| why.raw() == libc::EADDRNOTAVAIL;
            return Err(refusals
                .iter()
                .find(is_other)
                .map_or(Errno::from_raw(libc::EADDRINUSE), |why| *why));
        }
        self.restate(alone, random)
    }

    /// Others that say so, too, may be bound to the same from now on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn share(&mut self, random: u64) -> Result<(), Errno> {
        self.restate(Claim { shared: true, ..self.claim }, random)
    }

    /// It is its own family's only, or not. Who is there already is not asked, as by the kernel.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn keep_to_own_family(&mut self, only: bool, random: u64) -> Result<(), Errno> {
        let only_own = only || self.claim.address.is_ipv4();
        self.restate(Claim { only_own, ..self.claim }, random)
    }

    /// Says something else to whoever asks for it.
    fn restate(&mut self, claim: Claim, random: u64) -> Result<(), Errno> {
        match (&self.block, self.names.first_mut()) {
            (Some(block), _) => block.set(self.number, Some(claim)),
            (None, Some(first)) => *first = hold(&name(self.space, self.number), claim, random)?,
            (None, None) => {}
        }
        self.claim = claim;
        Ok(())
    }
}

/// Takes a name for a port. As several may have the same to say, it ends with a number of its own.
fn hold(stem: &str, claim: Claim, random: u64) -> Result<Name, Errno> {
    numbered(&format!("{stem}/{}/", claim.word()), random)
}

/// Takes a name that ends with a number that nobody else has taken.
fn numbered(stem: &str, random: u64) -> Result<Name, Errno> {
    for step in 0..u32::MAX {
        let own = (random as u32).wrapping_add(step);
        match take(&format!("{stem}{own:x}")) {
            Err(why) if why.raw() == libc::EADDRINUSE => {}
            done => return done,
        }
    }
    Err(Errno::from_raw(libc::EADDRINUSE))
}

/// Who has a port that was asked for by its number.
fn by_number(stem: &str) -> Result<Vec<Claim>, Errno> {
    let names = behind(&format!("{stem}/"))?;
    Ok(names.iter().filter_map(|name| Claim::parse(name.rsplit_once('/')?.0)).collect())
}

fn listening(service: ServiceId) -> String {
    format!("listen/{:#x}", service.0)
}

/// Takes requests for a service.
///
/// # Errors
/// Another process does, as for [`Port::reserve`].
pub(crate) fn listen(service: ServiceId, claim: Claim) -> Result<Vec<Name>, Errno> {
    let stem = listening(service);
    let _turn = turn(&stem)?;
    let alone = Claim { shared: false, ..claim };
    let others = behind(&format!("{stem}/"))?;
    // What a listener to one address thinks of others was asked when it was bound.
    let others = others.iter().filter_map(|place| Claim::parse(&format!("{place}/o")));
    if let Some(why) = others.filter_map(|other| alone.refusal(other)).next() {
        return Err(why);
    }
    claim.places().iter().map(|place| take(&format!("{stem}/{place}"))).collect()
}

/// Whether any process of this host takes requests for a service at an address.
///
/// # Errors
/// The system's: it cannot be seen.
pub(crate) fn is_listened_to(service: ServiceId, to: IpAddr) -> Result<bool, Errno> {
    let any =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    for place in [any, to] {
        if is_taken(&format!("{}/{}", listening(service), spelled(place)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What names begin with that say that a process has requests for a service and listens to it no more.
fn owing(service: ServiceId) -> String {
    format!("owes/{:#x}/", service.0)
}

/// Says that this process, which listens to a service no more, still has requests for it.
///
/// # Errors
/// The system's.
pub(crate) fn owe(service: ServiceId, random: u64) -> Result<Name, Errno> {
    numbered(&owing(service), random)
}

/// Services that processes of this host have requests for, though they may not listen to them any more.
///
/// # Errors
/// The system's: it cannot be seen.
pub(crate) fn owed() -> Result<Vec<ServiceId>, Errno> {
    let service = |name: &String| {
        let (service, _) = name.strip_prefix("0x")?.split_once('/')?;
        u64::from_str_radix(service, 16).ok().map(ServiceId)
    };
    Ok(behind("owes/")?.iter().filter_map(service).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_USE: Result<u16, Errno> = Err(Errno::from_raw(libc::EADDRINUSE));
    const NOT_AVAILABLE: Result<u16, Errno> = Err(Errno::from_raw(libc::EADDRNOTAVAIL));

    fn claim(address: &str) -> Claim {
        let bracketed =
            if address.contains(':') { format!("[{address}]:0") } else { format!("{address}:0") };
        Claim::of(bracketed.parse().expect("an address"), false, false)
    }

    #[test]
    fn a_name_says_what_its_owner_wants() {
        for address in ["10.0.0.1", "0.0.0.0", "::", "fd99::1", "fe80::1%3"] {
            let first = claim(address);
            for claim in [first, Claim { only_own: true, ..first }, Claim { shared: true, ..first }]
            {
                assert_eq!(Claim::parse(&claim.word()), Some(claim), "{address}");
            }
        }
    }

    #[test]
    fn a_link_local_address_at_two_interfaces_is_two_addresses() {
        let [two, three] = ["fe80::1%2", "fe80::1%3"].map(claim);
        assert_eq!(two.refusal(three), None);
        assert_eq!(two.refusal(two), Some(Errno::from_raw(libc::EADDRINUSE)));
        assert_eq!(two.refusal(claim("::")), Some(Errno::from_raw(libc::EADDRNOTAVAIL)));
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
        // As two processes, whose blocks are their own.
        let (blocks, others) = (Mutex::default(), Mutex::default());
        let space = PortSpace::Ib;
        let number = {
            let any = Port::reserve(&blocks, space, 0, claim("10.0.0.1"), 3).expect("free");
            any.number
        };
        let first = Port::reserve(&blocks, space, number, claim("10.0.0.1"), 3).expect("free");
        let only = |address: &str| Claim { only_own: true, ..claim(address) };
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
        let shared = Claim { shared: true, ..claim("10.0.0.1") };
        let reserve = |port, claim| Port::reserve(&blocks, PortSpace::Udp, port, claim, 9);
        let number = reserve(0, shared).expect("free").number;
        let mut first = reserve(number, shared).expect("free");
        assert_eq!(reserve(number, claim("10.0.0.1")).map(|port| port.number), IN_USE);
        let second = reserve(number, shared).expect("both share");
        assert_eq!(first.keep(&blocks, 9), Err(Errno::from_raw(libc::EADDRINUSE)));
        drop(second);
        assert_eq!(first.keep(&blocks, 9), Ok(()));
        assert_eq!(reserve(number, shared).map(|port| port.number), IN_USE, "it listens");
    }

    #[test]
    fn thousands_of_ports_need_few_descriptors_and_are_all_different() {
        let blocks = Mutex::default();
        let any = |port| Port::reserve(&blocks, PortSpace::Udp, port, claim("::"), 5);
        let reserve = |port| any(port).expect("free");
        let first = reserve(0);
        // One in the middle is somebody's who asked for it.
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
        let counts = |pieces: &Pieces| (pieces.blocks(5).count(), pieces.singles(5).count());
        assert_eq!(counts(&Pieces::of(32768..=60999)), (330, 7112));
        let all = Pieces::of(1..=u16::MAX);
        let (blocks, singles) = counts(&all);
        assert_eq!(blocks * 64 + singles, 65535);
        assert_eq!((all.blocks(0).next(), all.singles(0).last()), (Some(64), Some(65535)));
        assert_eq!(counts(&Pieces::of(40_001..=40_010)), (0, 10));
    }

    #[test]
    fn more_processes_than_there_are_blocks_have_a_port_each() {
        // Of numbers that nobody else tries, not even this test of another checkout.
        let first = 2048 + (std::process::id() % 100) as u16 * 256;
        let pieces = Pieces::of(first..=first + 255);
        let space = PortSpace::IpOverIb;
        assert_eq!((pieces.blocks(0).count(), pieces.singles(0).count()), (3, 64));
        let one_more = || {
            let mut process = Blocks::default();
            process.reserve_of(&pieces, space, claim("::"), 77)
        };
        let mut all: Vec<_> = (0..3 + 64).map(|_| one_more().expect("free")).collect();
        let numbers: std::collections::BTreeSet<_> = all.iter().map(|port| port.number).collect();
        assert_eq!(numbers.len(), all.len(), "all are different");
        assert_eq!(one_more().map(|port| port.number), NOT_AVAILABLE);
        let last = all.pop().expect("the last one").number;
        assert_eq!(one_more().map(|port| port.number), Ok(last));
        // Who asks for one by its number finds its owner.
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
        let six = Claim { only_own: true, ..claim("::") };
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
