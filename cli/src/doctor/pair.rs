//! `ferroverbs doctor --peer`: what keeps programs of two machines from meeting. On the other one `ferroverbs doctor --answer` listens to the port of RoCE v2.
//! A question goes there by that port; its answer comes back to where it was asked from, and again to that port of this machine. So both ways are tried.
//!
//! Datagrams begin with [`MAGIC`] and go on with JSON, and zeros up to the size that is tried: to those who share the port they are nothing. Nobody answers
//! more than he is asked with.

use super::host::ROCE_PORT;
use super::interfaces::addresses;
use super::{Check, Machine, State, devices, gids, soft};
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"fvdoctor";
/// What a datagram of RoCE v2 has besides the bytes that the path MTU counts, in UDP: BTH 12, RETH 16, ICRC 4.
const WITHIN: u32 = 32;
/// The same, and IPv6 and UDP around it.
const HEADERS: u32 = WITHIN + 48;
/// How often, each time from another port, and how long it is waited each time. Where programs share the port, the port that is asked from decides who hears it.
const TRIES: usize = 8;
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// More than any datagram of ours.
const ROOM: usize = 9000;

/// A socket of this address, which others may share.
fn listen(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseport(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    Ok(socket.into())
}

fn anywhere(like: IpAddr, port: u16) -> SocketAddr {
    let address = match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, port)
}

/// A datagram of at least `size` bytes.
fn pack(said: &Value, size: usize) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(said.to_string().bytes());
    bytes.resize(bytes.len().max(size).min(ROOM), 0);
    bytes
}

fn unpack(bytes: &[u8]) -> Option<Value> {
    let said = bytes.strip_prefix(MAGIC)?;
    let said = said.split(|byte| *byte == 0).next()?;
    // Longer ones are not ours.
    serde_json::from_slice(said.get(..said.len().min(1024))?).ok()
}

/// What this machine tells of itself: its version, the MTU of the interface that leads to `there`, how many devices the kernel has, and where their tables
/// of GIDs have the address that programs would use.
fn about(machine: &Machine, there: SocketAddr) -> Value {
    /// An answer must not be longer than its question.
    const GIDS: usize = 2;
    let devices = devices::find(machine);
    let own = address_to(there);
    let mut gids = own.map_or(Vec::new(), |own| gids::of_address(machine, &devices, own));
    gids.extend(own.and_then(|own| soft::of_address(machine, &devices, own)));
    gids.truncate(GIDS);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mtu": interface_to(there).map(|(_, mtu)| mtu),
        "address": own.map(|own| own.to_string()),
        "devices": devices.len(),
        "gids": gids,
    })
}

/// The address that this machine sends from when it sends there.
fn address_to(there: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(anywhere(there.ip(), 0)).ok()?;
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The interface that leads there, and its MTU.
fn interface_to(there: SocketAddr) -> Option<(String, u32)> {
    let own = address_to(there)?;
    let found = addresses().into_iter().find(|one| one.address == own)?;
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", found.interface));
    Some((found.interface, mtu.ok()?.trim().parse().ok()?))
}

/// Answers until nobody can hear it any more.
pub(super) fn answer(machine: &Machine) -> crate::Result<()> {
    let addresses = [
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, ROCE_PORT)),
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, ROCE_PORT)),
    ];
    let mut sockets: Vec<UdpSocket> = Vec::new();
    let mut why = String::new();
    for address in addresses {
        match listen(address) {
            Ok(socket) => sockets.push(socket),
            Err(error) => why = format!("cannot listen to UDP port {ROCE_PORT}: {error}"),
        }
    }
    let Some(last) = sockets.pop() else { return Err(why) };
    eprintln!(
        "ferroverbs: answers at UDP port {ROCE_PORT}; now, on the other machine: ferroverbs doctor --peer THIS-ONE"
    );
    std::thread::scope(|scope| {
        for socket in &sockets {
            scope.spawn(move || serve(machine, socket));
        }
        Err(format!("cannot listen any more: {}", serve(machine, &last)))
    })
}

/// Answers each question; why it ends.
fn serve(machine: &Machine, socket: &UdpSocket) -> io::Error {
    let mut room = [0; ROOM];
    loop {
        let (length, from) = match socket.recv_from(&mut room) {
            Ok(came) => came,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return error,
        };
        let asked = room.get(..length).and_then(unpack);
        let Some(asked) = asked.filter(|asked| asked["what"] == "question") else { continue };
        let mut said = about(machine, from);
        said["what"] = "answer".into();
        said["id"] = asked["id"].clone();
        // A question that is longer than this is answered by as much; no shorter one is.
        let answer = pack(&said, length);
        if answer.len() > length {
            continue;
        }
        // Whoever is gone needs no answer.
        let _ = socket.send_to(&answer, from);
        let back = asked["back"].as_u64().and_then(|port| u16::try_from(port).ok());
        if let (Some(port), Ok(other)) = (back, UdpSocket::bind(anywhere(from.ip(), 0))) {
            said["what"] = "back".into();
            let _ = other.send_to(&pack(&said, 0), SocketAddr::new(from.ip(), port));
        }
    }
}

/// What came of a question.
#[derive(Default)]
struct Heard {
    answer: Option<Value>,
    back: bool,
}

/// Asks with a datagram of `size` bytes; `listener` hears what comes to the port of this machine.
fn ask(
    there: SocketAddr,
    listener: Option<&UdpSocket>,
    size: usize,
    id: &str,
) -> io::Result<Heard> {
    let mut heard = Heard::default();
    let mut room = [0; ROOM];
    let back = listener.and_then(|socket| socket.local_addr().ok()).map(|address| address.port());
    let question = json!({ "what": "question", "id": id, "back": back });
    for _ in 0..TRIES {
        let asker = UdpSocket::bind(anywhere(there.ip(), 0))?;
        asker.send_to(&pack(&question, size), there)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while Instant::now() < deadline
            && (heard.answer.is_none() || (back.is_some() && !heard.back))
        {
            for socket in [Some(&asker), listener].into_iter().flatten() {
                socket.set_read_timeout(Some(Duration::from_millis(10)))?;
                let Ok((length, _)) = socket.recv_from(&mut room) else { continue };
                let Some(said) = room.get(..length).and_then(unpack) else { continue };
                if said["id"] == id {
                    heard.back |= said["what"] == "back";
                    if said["what"] == "answer" {
                        heard.answer = Some(said);
                    }
                }
            }
        }
        if heard.answer.is_some() && (back.is_none() || heard.back) {
            break;
        }
    }
    Ok(heard)
}

/// The largest path MTU that goes with an interface's.
fn path_mtu(mtu: u64) -> Option<u32> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|bytes| u64::from(bytes + HEADERS) <= mtu)
}

/// What is between this machine and that one.
pub(super) fn check(machine: &Machine, name: &str) -> Vec<Check> {
    let found = match (name, ROCE_PORT).to_socket_addrs() {
        Ok(found) => found.collect::<Vec<_>>(),
        Err(error) => {
            let finding = format!("{name} is no host that is known: {error}");
            return vec![Check::missing("peer", finding, "name it by its address")];
        }
    };
    let mut checks = Vec::new();
    // One of each family.
    for is_four in [true, false] {
        if let Some(there) = found.iter().find(|address| address.is_ipv4() == is_four) {
            checks.extend(between(machine, *there, ROCE_PORT));
        }
    }
    checks
}

/// `here` is the port of this machine that answers come to, too.
fn between(machine: &Machine, there: SocketAddr, here: u16) -> Vec<Check> {
    let (to, port) = (there.ip(), there.port());
    let listener = listen(anywhere(to, here));
    let mut checks = Vec::new();
    if let Err(error) = &listener {
        checks.push(
            Check::new(
                "peer-back",
                State::Unknown,
                format!("cannot listen to UDP port {here}: {error}"),
            )
            .remedy(format!("which process has it: ss -ulpn 'sport = :{here}'")),
        );
    }
    let id = format!("{}-{}", std::process::id(), there.port());
    let heard = match ask(there, listener.as_ref().ok(), 512, &id) {
        Ok(heard) => heard,
        Err(error) => {
            let finding = format!("nothing can be sent to {to}: {error}");
            checks.push(Check::missing("peer", finding, format!("ip route get {to}")));
            return checks;
        }
    };
    let Some(answer) = heard.answer else {
        let finding = match heard.back {
            true => {
                format!("{to} hears UDP port {port}, but its answers to other ports do not arrive")
            }
            false => format!("{to} does not answer at UDP port {port}"),
        };
        let remedy = format!(
            "there: ferroverbs doctor --answer; if it runs: nft add rule inet filter input udp dport {port} accept"
        );
        checks.push(Check::missing("peer", finding, remedy));
        return checks;
    };
    checks.push(Check::ok("peer", format!("{to} is reached by UDP port {port}")));
    match (&listener, heard.back) {
        (Err(_), _) => {}
        (_, true) => checks
            .push(Check::ok("peer-back", format!("{to} reaches UDP port {here} of this machine"))),
        (_, false) => checks.push(Check::missing(
            "peer-back",
            format!("what {to} sends to UDP port {here} of this machine does not arrive"),
            format!("here: nft add rule inet filter input udp dport {here} accept"),
        )),
    }
    let theirs = answer["version"].as_str().unwrap_or("unknown");
    let ours = env!("CARGO_PKG_VERSION");
    checks.push(if theirs == ours {
        Check::ok("peer-version", format!("both have Ferroverbs {ours}"))
    } else {
        Check::note("peer-version", format!("Ferroverbs {ours} here, {theirs} there"))
            .remedy("install the same release on both")
    });
    checks.push(mtu(there, &answer, &id));
    checks.push(gids(&about(machine, there), &answer));
    checks
}

/// Whether programs of both find a GID that goes this way, and at which index.
fn gids(ours: &Value, theirs: &Value) -> Check {
    let address = |side: &Value| side["address"].as_str().map(plain).unwrap_or_default();
    // The entry to use, or that there is none.
    let entry = |side: &Value| -> Option<Result<String, String>> {
        let all = side["gids"].as_array()?;
        let all: Vec<String> = all.iter().filter_map(Value::as_str).map(plain).collect();
        Some(match side["devices"].as_u64()? {
            _ if !all.is_empty() => Ok(all.join(" or ")),
            // The software device has all addresses of the machine; older releases do not tell the index.
            0 => Ok("soft0".into()),
            _ => Err(address(side)),
        })
    };
    let (Some(here), Some(there)) = (entry(ours), entry(theirs)) else {
        return Check::new("peer-gids", State::Unknown, "the other machine does not tell its GIDs");
    };
    match (here, there) {
        (Ok(here), Ok(there)) => {
            Check::ok("peer-gids", format!("for this way: {here} here, {there} there"))
        }
        (here, there) => {
            let lacks = |side: Result<String, String>, place: &str| {
                side.err()
                    .map(|address| format!("no device has a GID of RoCE v2 for {address}, {place}"))
            };
            let both: Vec<String> =
                [lacks(here, "here"), lacks(there, "there")].into_iter().flatten().collect();
            let remedy = "give each device's interface an address of the same network (ip addr add), and meet by these";
            Check::missing("peer-gids", both.join("; "), remedy)
        }
    }
}

/// What another machine says, for a terminal.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

fn mtu(there: SocketAddr, answer: &Value, id: &str) -> Check {
    let to = there.ip();
    let (Some((interface, ours)), Some(theirs)) = (interface_to(there), answer["mtu"].as_u64())
    else {
        return Check::new("peer-mtu", State::Unknown, "the MTU of an interface is not known");
    };
    let least = u64::from(ours).min(theirs);
    let Some(bytes) = path_mtu(least) else {
        let finding = format!("MTU {ours} here, {theirs} there: too little for any path MTU");
        return Check::missing(
            "peer-mtu",
            finding,
            format!("ip link set dev {interface} mtu 1500"),
        );
    };
    let size = (bytes + WITHIN) as usize;
    let arrives =
        ask(there, None, size, &format!("{id}-mtu")).is_ok_and(|heard| heard.answer.is_some());
    if !arrives {
        let finding = format!(
            "MTU {ours} here, {theirs} there, but datagrams of {size} bytes get lost between here and {to}"
        );
        let remedy = format!(
            "raise the MTU of what is between, or: ip link set dev {interface} mtu 1280, on both"
        );
        return Check::missing("peer-mtu", finding, remedy);
    }
    let finding = format!("path MTU {bytes} (MTU {ours} here, {theirs} there)");
    if path_mtu(ours.into()) == path_mtu(theirs) {
        Check::ok("peer-mtu", finding)
    } else {
        Check::note(
            "peer-mtu",
            format!("{finding}: a program that takes its own port's active_mtu fails"),
        )
        .remedy("set path_mtu to the lesser of both, or the same MTU on both")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Picture;
    use super::*;

    fn state(checks: &[Check], id: &str) -> Option<State> {
        checks.iter().find(|check| check.id == id).map(|check| check.state)
    }

    #[test]
    fn who_answers_is_found_and_who_does_not_is_told() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let there = socket.local_addr().expect("an address");
        // Both have a card, which lacks a GID for the address that they meet by.
        let picture = Picture::new().with_card();
        let machine = || Machine::pictured(&picture.0, 1000, |_| None);
        let served = machine();
        std::thread::spawn(move || serve(&served, &socket));
        let checks = between(&machine(), there, 0);
        assert_eq!(state(&checks, "peer-gids"), Some(State::Missing), "{checks:?}");
        let picture = picture.file(
            "sys/class/infiniband/mlx5_0/ports/1/gids/3",
            "0000:0000:0000:0000:0000:ffff:7f00:0001\n",
        );
        let machine = Machine::pictured(&picture.0, 1000, |_| None);
        let checks = between(&machine, there, 0);
        let found = checks.iter().find(|check| check.id == "peer-gids").expect("the check");
        assert_eq!(
            found.finding,
            "for this way: mlx5_0 port 1 index 3 here, mlx5_0 port 1 index 3 there"
        );
        // So they are told programs, too.
        let read: Value = serde_json::from_str(&super::super::json(&checks)).expect("JSON");
        let ids = read["checks"].as_array().expect("checks").iter().map(|check| &check["id"]);
        assert_eq!(
            ids.collect::<Vec<_>>(),
            ["peer", "peer-back", "peer-version", "peer-mtu", "peer-gids"]
        );
        assert_eq!(state(&checks, "peer"), Some(State::Ok), "{checks:?}");
        assert_eq!(state(&checks, "peer-back"), Some(State::Ok), "{checks:?}");
        assert_eq!(state(&checks, "peer-version"), Some(State::Ok), "{checks:?}");
        assert_eq!(state(&checks, "peer-mtu"), Some(State::Ok), "{checks:?}");
        // Somebody is there and says nothing.
        let mute = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let checks = between(&machine, mute.local_addr().expect("an address"), 0);
        assert_eq!(state(&checks, "peer"), Some(State::Missing), "{checks:?}");
    }

    #[test]
    fn gids_are_of_this_machine_and_of_the_other() {
        let side = |devices: u32, gids: &[&str]| json!({ "devices": devices, "gids": gids, "address": "10.0.0.1" });
        let none = side(0, &[]);
        assert_eq!(gids(&none, &side(1, &["rxe0 port 1 index 1"])).state, State::Ok);
        assert_eq!(gids(&none, &side(1, &[])).state, State::Missing);
        assert!(gids(&side(1, &[]), &none).finding.ends_with("10.0.0.1, here"));
        assert_eq!(gids(&none, &json!({ "version": "0" })).state, State::Unknown);
        assert!(!gids(&none, &side(1, &["a\u{1b}[2J"])).finding.contains('\u{1b}'));
    }

    #[test]
    fn what_is_no_question_gets_no_answer() {
        assert_eq!(
            unpack(b"fvdoctor{\"what\":1}\0\0\0").map(|said| said["what"].clone()),
            Some(1.into())
        );
        for nonsense in [&b""[..], b"fvdocto", b"fvdoctor", b"fvdoctor{", b"\0\0\0", &[0xff; 64]] {
            assert!(unpack(nonsense).is_none(), "{nonsense:?}");
        }
        let long = pack(&json!({ "what": "question" }), 100_000);
        assert_eq!(long.len(), ROOM);
    }

    #[test]
    fn a_path_mtu_goes_with_headers_into_the_interface_s() {
        assert_eq!(
            [9000, 4176, 4175, 1500, 1280, 300].map(path_mtu),
            [Some(4096), Some(4096), Some(2048), Some(1024), Some(1024), None]
        );
    }
}
