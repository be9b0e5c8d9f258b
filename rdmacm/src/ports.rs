//! Who has which port, among the processes of a host.
//!
//! A port is an abstract Unix socket of that name: the kernel gives a name to one socket of a network namespace only, anybody can see whether
//! it is taken, and it is free when its owner is gone, however that came. Users do not share names: they do not meet over the adapter, either.

use cface::Errno;
use ferroverbs_cm::wire::{PortSpace, ServiceId};
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Of which families' addresses something is. An IPv6 wildcard is IPv4's, too, unless its id wants its own family only (`RDMA_OPTION_ID_AFONLY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) four: bool,
    pub(crate) six: bool,
}

impl Families {
    pub(crate) const FOUR: Self = Self { four: true, six: false };
    pub(crate) const SIX: Self = Self { four: false, six: true };
    pub(crate) const BOTH: Self = Self { four: true, six: true };

    /// Whose requests an id takes that is bound to `address`.
    pub(crate) const fn of(address: IpAddr, only_own: bool) -> Self {
        match address {
            IpAddr::V4(_) => Self::FOUR,
            IpAddr::V6(address) if address.is_unspecified() && !only_own => Self::BOTH,
            IpAddr::V6(_) => Self::SIX,
        }
    }

    /// Whether one of them is one of `other`'s.
    pub(crate) const fn meet(self, other: Self) -> bool {
        self.four && other.four || self.six && other.six
    }

    /// What ends the name of each of them.
    fn ends(self) -> impl Iterator<Item = &'static str> {
        [(self.four, ""), (self.six, "/6")].into_iter().filter_map(|(is, end)| is.then_some(end))
    }
}

/// A name that is ours until it is dropped.
#[derive(Debug)]
pub(crate) struct Name {
    _socket: UnixDatagram,
}

fn address(name: &str) -> Result<SocketAddr, Errno> {
    // SAFETY: geteuid has no requirements.
    let user = unsafe { libc::geteuid() };
    Ok(SocketAddr::from_abstract_name(format!("ferroverbs-rdmacm/{user}/{name}"))?)
}

/// Takes a name.
///
/// # Errors
/// `EADDRINUSE` somebody has it; the system's.
fn take(name: &str) -> Result<Name, Errno> {
    match UnixDatagram::bind_addr(&address(name)?) {
        Ok(socket) => Ok(Name { _socket: socket }),
        Err(why) if why.kind() == ErrorKind::AddrInUse => Err(Errno::from_raw(libc::EADDRINUSE)),
        Err(why) => Err(why.into()),
    }
}

/// Whether somebody has a name.
///
/// # Errors
/// The system's: it cannot be seen.
fn is_taken(name: &str) -> Result<bool, Errno> {
    match UnixDatagram::unbound()?.connect_addr(&address(name)?) {
        Ok(()) => Ok(true),
        Err(why) if why.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// Takes a name in each family.
fn take_all(name: &str, families: Families) -> Result<Vec<Name>, Errno> {
    families.ends().map(|end| take(&format!("{name}{end}"))).collect()
}

/// Whether somebody has a name in any of the families.
fn is_any_taken(name: &str, families: Families) -> Result<bool, Errno> {
    for end in families.ends() {
        if is_taken(&format!("{name}{end}"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A port of a space, reserved.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _names: Vec<Name>,
    block: Option<Arc<Block>>,
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(block) = &self.block {
            block.used.fetch_and(!(1 << (self.number % Block::LEN)), Ordering::Relaxed);
        }
    }
}

/// Where ports for those who do not care begin, and how many there are (IANA's dynamic ports).
const DYNAMIC: (u16, u16) = (49152, 16384);

/// Ports in a row for those who do not care, which are one process's by one name: thousands of connections do not need thousands of descriptors.
#[derive(Debug)]
struct Block {
    space: PortSpace,
    first: u16,
    /// A bit for each; set under the lock of `Blocks`.
    used: AtomicU64,
    _name: Name,
}

impl Block {
    const LEN: u16 = 64;

    /// A port of it that nobody has, this process or another one by its number.
    ///
    /// # Errors
    /// The system's.
    fn reserve(self: &Arc<Self>) -> Result<Option<Port>, Errno> {
        for offset in 0..Self::LEN {
            let number = self.first + offset;
            let is_free = self.used.load(Ordering::Relaxed) & 1 << offset == 0;
            if is_free && !is_any_taken(&name(self.space, number), Families::BOTH)? {
                self.used.fetch_or(1 << offset, Ordering::Relaxed);
                let block = Some(Arc::clone(self));
                return Ok(Some(Port { number, _names: vec![], block }));
            }
        }
        Ok(None)
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
    fn reserve(&mut self, space: PortSpace, random: u64) -> Result<Port, Errno> {
        self.0.retain(|block| block.strong_count() > 0);
        let own = self.0.iter().filter_map(Weak::upgrade).filter(|block| block.space == space);
        for block in own.rev() {
            if let Some(port) = block.reserve()? {
                return Ok(port);
            }
        }
        let (first, count) = (DYNAMIC.0, DYNAMIC.1 / Block::LEN);
        for step in 0..count {
            let [low, high, ..] = random.to_le_bytes();
            let at = u16::from_le_bytes([low, high]).wrapping_add(step) % count;
            let first = first + at * Block::LEN;
            let name = match take(&format!("ports/{:#x}/{first}", space as u16)) {
                Ok(name) => name,
                Err(why) if why.raw() == libc::EADDRINUSE => continue,
                Err(why) => return Err(why),
            };
            let block = Arc::new(Block { space, first, used: AtomicU64::new(0), _name: name });
            if let Some(port) = block.reserve()? {
                self.0.push(Arc::downgrade(&block));
                return Ok(port);
            }
        }
        Err(Errno::from_raw(libc::EADDRNOTAVAIL))
    }

    /// Whether a port is in use as one of those.
    fn have(&self, space: PortSpace, port: u16) -> bool {
        self.0.iter().filter_map(Weak::upgrade).any(|block| {
            block.space == space
                && port.checked_sub(block.first).is_some_and(|offset| {
                    offset < Block::LEN && block.used.load(Ordering::Relaxed) >> offset & 1 != 0
                })
        })
    }
}

/// The name of a port that was asked for by its number.
fn name(space: PortSpace, port: u16) -> String {
    format!("port/{:#x}/{port}", space as u16)
}

impl Port {
    /// Reserves `port`, or any if it is 0. With `shared` it may be somebody else's already. That another process has it as one of those that nobody asked
    /// for is not seen; two cannot listen to it.
    ///
    /// # Errors
    /// `EADDRINUSE` somebody has it; `EADDRNOTAVAIL` all are in use.
    pub(crate) fn reserve(
        blocks: &Mutex<Blocks>,
        space: PortSpace,
        port: u16,
        families: Families,
        shared: bool,
        random: u64,
    ) -> Result<Self, Errno> {
        let mut blocks = blocks.lock();
        if port == 0 {
            return blocks.reserve(space, random);
        }
        let taken = if blocks.have(space, port) {
            Err(Errno::from_raw(libc::EADDRINUSE))
        } else {
            take_all(&name(space, port), families)
        };
        match taken {
            Ok(names) => Ok(Self { number: port, _names: names, block: None }),
            Err(_) if shared => Ok(Self { number: port, _names: vec![], block: None }),
            Err(why) => Err(why),
        }
    }
}

/// Takes requests for a service.
///
/// # Errors
/// `EADDRINUSE` another process does.
pub(crate) fn listen(service: ServiceId, families: Families) -> Result<Vec<Name>, Errno> {
    take_all(&format!("listen/{:#x}", service.0), families)
}

/// Whether any process of this host takes requests for a service.
///
/// # Errors
/// The system's: it cannot be seen.
pub(crate) fn is_listened_to(service: ServiceId, families: Families) -> Result<bool, Errno> {
    is_any_taken(&format!("listen/{:#x}", service.0), families)
}

/// Upper bits of the names of connections: which process of the host they are of.
pub(crate) const OWNER_BITS: u32 = 12;

/// The number of a process, from 1.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) number: u32,
    _name: Name,
    /// What others of this host see the end of this process by: they connect, nobody accepts, and the kernel closes it with the process.
    _life: UnixListener,
}

/// Takes a number for this process.
///
/// # Errors
/// `EAGAIN` all are taken; the system's.
pub(crate) fn own(random: u64) -> Result<Own, Errno> {
    let most = (1_u64 << OWNER_BITS) - 1;
    for step in 0..most {
        let number = (1 + random.wrapping_add(step) % most) as u32;
        let taken = take(&format!("process/{number}"))
            .and_then(|name| Ok(Own { number, _name: name, _life: show_life(number)? }));
        match taken {
            Err(why) if why.raw() == libc::EADDRINUSE => {}
            done => return done,
        }
    }
    Err(Errno::EAGAIN)
}

fn show_life(number: u32) -> Result<UnixListener, Errno> {
    Ok(UnixListener::bind_addr(&address(&life(number))?)?)
}

fn life(number: u32) -> String {
    format!("life/{number}")
}

/// A descriptor on which the kernel hangs up when the process of that number ends.
///
/// # Errors
/// `ECONNREFUSED` it is gone; `EAGAIN` too many watch it; the system's.
pub(crate) fn watch(number: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: geteuid has no requirements.
    let user = unsafe { libc::geteuid() };
    let name = format!("ferroverbs-rdmacm/{user}/{}", life(number));
    let mut to = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    // An abstract name begins with a zero.
    for (place, byte) in to.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    let len = (size_of::<libc::sa_family_t>() + 1 + name.len()) as libc::socklen_t;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket has no requirements; what it made is ours; `to` has as many bytes, since the name is far shorter than the path.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 {
            return Err(Errno::last());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        match libc::connect(fd.as_raw_fd(), (&raw const to).cast(), len) {
            0 => Ok(fd),
            _ => Err(Errno::last()),
        }
    }
}

/// Becomes the one who answers for those that nobody is, or that are gone; `None`: another process is that already.
pub(crate) fn speak() -> Option<Name> {
    take("speaker").ok()
}

/// Whether the process of that number lives; one that cannot be seen is taken for alive, so that nobody answers in its name.
pub(crate) fn lives(number: u32) -> bool {
    is_taken(&format!("process/{number}")).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_owners_until_it_is_dropped() {
        let blocks = Mutex::default();
        let all = Families::BOTH;
        let reserve = |port, shared| Port::reserve(&blocks, PortSpace::Tcp, port, all, shared, 1);
        let any = reserve(0, false).expect("one is free");
        let chosen = any.number;
        for first in [any, reserve(chosen + 1, false).expect("nobody has it")] {
            let again = reserve(first.number, false).map(|port| port.number);
            assert_eq!(again, Err(Errno::from_raw(libc::EADDRINUSE)));
            assert!(reserve(first.number, true).is_ok(), "shared");
            let number = first.number;
            drop(first);
            assert!(reserve(number, false).is_ok());
        }
    }

    #[test]
    fn thousands_of_ports_need_few_descriptors_and_are_all_different() {
        let blocks = Mutex::default();
        let all = Families::BOTH;
        let any = |port| Port::reserve(&blocks, PortSpace::Udp, port, all, false, 5);
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
    fn the_end_of_a_process_is_seen_by_who_watches_it() {
        // A number that `own` gives to nobody.
        let number = 1_000_000 + std::process::id();
        assert_eq!(watch(number).map(drop), Err(Errno::from_raw(libc::ECONNREFUSED)));
        let life = show_life(number).expect("nobody has the name");
        let watched = watch(number).expect("it lives");
        let hangs_up = |wait| {
            let mut fd = libc::pollfd { fd: watched.as_raw_fd(), events: 0, revents: 0 };
            // SAFETY: `fd` is one entry.
            unsafe { libc::poll(&raw mut fd, 1, wait) == 1 && fd.revents & libc::POLLHUP != 0 }
        };
        assert!(!hangs_up(0));
        drop(life);
        assert!(hangs_up(10_000));
    }

    #[test]
    fn a_listener_is_seen_while_it_listens() {
        let service = ServiceId(0xfeed_0000_0000_0000 | u64::from(std::process::id()));
        let both = Families::BOTH;
        assert_eq!(is_listened_to(service, both), Ok(false));
        let name = listen(service, Families::FOUR).expect("nobody does");
        assert_eq!(is_listened_to(service, both), Ok(true));
        assert_eq!(is_listened_to(service, Families::SIX), Ok(false));
        assert!(listen(service, both).is_err() && listen(service, Families::FOUR).is_err());
        drop((listen(service, Families::SIX).expect("nobody does"), name));
        assert_eq!(is_listened_to(service, both), Ok(false));
    }
}
