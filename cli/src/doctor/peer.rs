//! `ferroverbs doctor --peer`: checks the path between two machines.
//!
//! On the other machine, `ferroverbs doctor --answer` listens to the port of RoCE v2. A question
//! goes to that port. The answer comes twice: to the port of the question, and to the RoCE v2 port
//! of this machine. The two answers check both directions.
//!
//! A datagram is [`MAGIC`], a JSON object, and zeros up to the size to check. RDMA programs that
//! share the port drop such datagrams. An answer never has more bytes than its question.
//!
//! Map of this file: datagrams and addresses; `answer_questions`, the answering side; `query_peer`;
//! `check`, the asking side, with one function for each finding; tests.

use super::check::{Check, CheckState};
use super::host::ROCE_PORT;
use super::interfaces::addresses;
use super::machine::Machine;
use super::{devices, firewall, gids, soft};
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"fvdoctor";
/// Bytes of a RoCE v2 datagram around the payload, in UDP: BTH 12, RETH 16, ICRC 4.
const ROCE_HEADERS: u32 = 32;
/// Bytes of a packet around the payload, with IPv6 and UDP.
const HEADERS: u32 = ROCE_HEADERS + 48;
/// The number of questions, each from another port. If processes share the RoCE v2 port, the kernel
/// selects the receiver by the source port.
const TRIES: usize = 8;
/// The time to wait for the answer of one question.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// The size of the receive buffer, which is larger than each datagram.
const ROOM: usize = 9000;

/// A UDP socket at `address`, which other processes of the user may share.
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

fn wildcard(like: IpAddr, port: u16) -> SocketAddr {
    let address = match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, port)
}

/// A datagram of at least `size` bytes.
fn pack(message: &Value, size: usize) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(message.to_string().bytes());
    bytes.resize(bytes.len().max(size).min(ROOM), 0);
    bytes
}

fn unpack(bytes: &[u8]) -> Option<Value> {
    let message = bytes.strip_prefix(MAGIC)?;
    let message = message.split(|byte| *byte == 0).next()?;
    // No question or answer has more text.
    serde_json::from_slice(message.get(..message.len().min(1024))?).ok()
}

/// The facts about this machine for the other machine: the version, the MTU of the interface
/// towards `there`, the number of kernel devices, and the GID entries with the address of that
/// interface.
fn describe_machine(machine: &Machine, there: SocketAddr) -> Value {
    /// The number of GID entries to send, because an answer must not be longer than its question.
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

/// The source address of packets to `there`.
fn address_to(there: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(wildcard(there.ip(), 0)).ok()?;
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The interface towards `there`, and the MTU of the interface.
fn interface_to(there: SocketAddr) -> Option<(String, u32)> {
    let own = address_to(there)?;
    let found = addresses().into_iter().find(|one| one.address == own)?;
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", found.interface));
    Some((found.interface, mtu.ok()?.trim().parse().ok()?))
}

/// Answers questions until a socket fails.
pub(super) fn answer_questions(machine: &Machine) -> crate::Result<()> {
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
    if let Some(remedy) = firewall::remedy(machine) {
        eprintln!(
            "ferroverbs: a packet filter drops what comes to UDP port {ROCE_PORT}; as root: {remedy}"
        );
    }
    eprintln!(
        "ferroverbs: answers at UDP port {ROCE_PORT}; now, on the other machine: ferroverbs doctor --peer THIS-MACHINE"
    );
    std::thread::scope(|scope| {
        for socket in &sockets {
            scope.spawn(move || serve(machine, socket));
        }
        Err(format!("cannot listen any more: {}", serve(machine, &last)))
    })
}

/// Answers the questions of a socket. Returns the error that ended the loop.
fn serve(machine: &Machine, socket: &UdpSocket) -> io::Error {
    let mut room = [0; ROOM];
    loop {
        let (length, from) = match socket.recv_from(&mut room) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return error,
        };
        let message = room.get(..length).and_then(unpack);
        let Some(question) = message.filter(|message| message["what"] == "question") else {
            continue;
        };
        let mut facts = describe_machine(machine, from);
        facts["what"] = "answer".into();
        facts["id"] = question["id"].clone();
        // The answer has the size of the question. A question that is too short gets no answer.
        let answer = pack(&facts, length);
        if answer.len() > length {
            continue;
        }
        // If the asking process has ended, the answer is lost.
        let _ = socket.send_to(&answer, from);
        let back = question["back"].as_u64().and_then(|port| u16::try_from(port).ok());
        if let (Some(port), Ok(other)) = (back, UdpSocket::bind(wildcard(from.ip(), 0))) {
            facts["what"] = "back".into();
            let _ = other.send_to(&pack(&facts, 0), SocketAddr::new(from.ip(), port));
        }
    }
}

/// The answers to a question.
#[derive(Default)]
struct PeerAnswers {
    answer: Option<Value>,
    arrived_at_port: bool,
}

/// Asks with datagrams of `size` bytes. `listener` is the socket at the RoCE v2 port of this
/// machine.
fn query_peer(
    there: SocketAddr,
    listener: Option<&UdpSocket>,
    size: usize,
    id: &str,
) -> io::Result<PeerAnswers> {
    let mut answers = PeerAnswers::default();
    let mut room = [0; ROOM];
    let back = listener.and_then(|socket| socket.local_addr().ok()).map(|address| address.port());
    let question = json!({ "what": "question", "id": id, "back": back });
    for _ in 0..TRIES {
        let asker = UdpSocket::bind(wildcard(there.ip(), 0))?;
        asker.send_to(&pack(&question, size), there)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while Instant::now() < deadline
            && (answers.answer.is_none() || (back.is_some() && !answers.arrived_at_port))
        {
            for socket in [Some(&asker), listener].into_iter().flatten() {
                socket.set_read_timeout(Some(Duration::from_millis(10)))?;
                let Ok((length, _)) = socket.recv_from(&mut room) else { continue };
                let Some(output) = room.get(..length).and_then(unpack) else { continue };
                if output["id"] == id {
                    answers.arrived_at_port |= output["what"] == "back";
                    if output["what"] == "answer" {
                        answers.answer = Some(output);
                    }
                }
            }
        }
        if answers.answer.is_some() && (back.is_none() || answers.arrived_at_port) {
            break;
        }
    }
    Ok(answers)
}

/// The largest path MTU for an interface with this MTU.
fn path_mtu(mtu: u64) -> Option<u32> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|bytes| u64::from(bytes + HEADERS) <= mtu)
}

/// Checks the path to the machine `name`.
pub(super) fn check(machine: &Machine, name: &str) -> Vec<Check> {
    let found = match (name, ROCE_PORT).to_socket_addrs() {
        Ok(found) => found.collect::<Vec<_>>(),
        Err(error) => {
            let finding = format!("the name {name} has no address: {error}");
            return vec![Check::missing("peer", finding, "use the address of the machine instead")];
        }
    };
    let mut checks = Vec::new();
    // Check one address of each family.
    for is_four in [true, false] {
        if let Some(there) = found.iter().find(|address| address.is_ipv4() == is_four) {
            checks.extend(check_path(machine, *there, ROCE_PORT));
        }
    }
    checks
}

/// Checks the path to an address. `here` is the port of this machine for the second answer.
fn check_path(machine: &Machine, there: SocketAddr, here: u16) -> Vec<Check> {
    let (to, port) = (there.ip(), there.port());
    let listener = listen(wildcard(to, here));
    let mut checks = Vec::new();
    if let Err(error) = &listener {
        checks.push(
            Check::new(
                "peer-back",
                CheckState::Unknown,
                format!("cannot listen to UDP port {here}: {error}"),
            )
            .remedy(format!("to find the process: ss -ulpn 'sport = :{here}'")),
        );
    }
    let id = format!("{}-{}", std::process::id(), there.port());
    let answers = match query_peer(there, listener.as_ref().ok(), 512, &id) {
        Ok(answers) => answers,
        Err(error) => {
            let finding = format!("nothing can be sent to {to}: {error}");
            checks.push(Check::missing("peer", finding, format!("ip route get {to}")));
            return checks;
        }
    };
    let Some(answer) = answers.answer else {
        let finding = match answers.arrived_at_port {
            true => {
                format!(
                    "{to} receives packets at UDP port {port}, but its answers to other ports do not arrive"
                )
            }
            false => format!("{to} does not answer at UDP port {port}"),
        };
        let remedy = format!(
            "on {to}: ferroverbs doctor --answer; if it runs already, on {to}: {}",
            open_port(port)
        );
        checks.push(Check::missing("peer", finding, remedy));
        return checks;
    };
    checks.push(Check::ok("peer", format!("packets to UDP port {port} of {to} arrive")));
    match (&listener, answers.arrived_at_port) {
        (Err(_), _) => {}
        (_, true) => checks.push(Check::ok(
            "peer-back",
            format!("packets of {to} to UDP port {here} of this machine arrive"),
        )),
        (_, false) => checks.push(Check::missing(
            "peer-back",
            format!("packets of {to} to UDP port {here} of this machine do not arrive"),
            format!("here: {}", firewall::remedy(machine).unwrap_or_else(|| open_port(here))),
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
    checks.push(gids(&describe_machine(machine, there), &answer));
    checks
}

/// The advice for a machine whose packet filter is not known here.
///
/// A rule must be inserted before the other rules: a rule at the end has no effect after a rule
/// that drops.
fn open_port(port: u16) -> String {
    format!(
        "sudo ferroverbs doctor prints the rule to insert, such as: nft insert rule inet filter input udp dport {port} accept"
    )
}

/// Checks that both machines have a GID for this path, and names the indices.
fn gids(ours: &Value, theirs: &Value) -> Check {
    let address = |side: &Value| side["address"].as_str().map(beginning).unwrap_or_default();
    // The entry to use, or the address that no entry has.
    let entry = |side: &Value| -> Option<Result<String, String>> {
        let all = side["gids"].as_array()?;
        let all: Vec<String> = all.iter().filter_map(Value::as_str).map(beginning).collect();
        Some(match side["devices"].as_u64()? {
            _ if !all.is_empty() => Ok(all.join(" or ")),
            // The software device has an entry for each address. Older releases do not send the
            // index.
            0 => Ok("soft0".into()),
            _ => Err(address(side)),
        })
    };
    let (Some(here), Some(there)) = (entry(ours), entry(theirs)) else {
        return Check::new(
            "peer-gids",
            CheckState::Unknown,
            "the other machine did not send its GIDs",
        );
    };
    match (here, there) {
        (Ok(here), Ok(there)) => {
            Check::ok("peer-gids", format!("GIDs for this path: {here} here, {there} there"))
        }
        (here, there) => {
            let lacks = |side: Result<String, String>, place: &str| {
                side.err()
                    .map(|address| format!("no device has a RoCE v2 GID for {address}, {place}"))
            };
            let both: Vec<String> =
                [lacks(here, "here"), lacks(there, "there")].into_iter().flatten().collect();
            let remedy = "give the interfaces of both devices an address of one network (ip addr add), and use these addresses";
            Check::missing("peer-gids", both.join("; "), remedy)
        }
    }
}

/// The beginning of a text from another machine.
fn beginning(text: &str) -> String {
    crate::output::printable(text).chars().take(100).collect()
}

fn mtu(there: SocketAddr, answer: &Value, id: &str) -> Check {
    let to = there.ip();
    let (Some((interface, ours)), Some(theirs)) = (interface_to(there), answer["mtu"].as_u64())
    else {
        return Check::new("peer-mtu", CheckState::Unknown, "the MTU of an interface is unknown");
    };
    let least = u64::from(ours).min(theirs);
    let Some(bytes) = path_mtu(least) else {
        let finding = format!("MTU {ours} here, {theirs} there: too small for a path MTU");
        return Check::missing(
            "peer-mtu",
            finding,
            format!("ip link set dev {interface} mtu 1500"),
        );
    };
    let size = (bytes + ROCE_HEADERS) as usize;
    let arrives = query_peer(there, None, size, &format!("{id}-mtu"))
        .is_ok_and(|answers| answers.answer.is_some());
    if !arrives {
        let finding = format!(
            "MTU {ours} here, {theirs} there, but datagrams of {size} bytes do not arrive at {to}"
        );
        let remedy = format!(
            "raise the MTU of the switches and tunnels between the machines, or on both: ip link set dev {interface} mtu 1280"
        );
        return Check::missing("peer-mtu", finding, remedy);
    }
    let finding = format!("path MTU {bytes} (MTU {ours} here, {theirs} there)");
    if path_mtu(ours.into()) == path_mtu(theirs) {
        Check::ok("peer-mtu", finding)
    } else {
        Check::note(
            "peer-mtu",
            format!("{finding}: a program that uses the active_mtu of its own port fails"),
        )
        .remedy("set path_mtu to the smaller MTU, or set the same MTU on both machines")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::MachineImage;
    use super::*;

    fn state(checks: &[Check], id: &str) -> Option<CheckState> {
        checks.iter().find(|check| check.id == id).map(|check| check.state)
    }

    #[test]
    fn a_machine_that_does_not_answer_is_missing() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let there = socket.local_addr().expect("an address");
        // Both machines have a card without a GID for the address.
        let image = MachineImage::new().with_card();
        let machine = || Machine::of_image(&image.0, 1000, |_| None);
        let served = machine();
        std::thread::spawn(move || serve(&served, &socket));
        let checks = check_path(&machine(), there, 0);
        assert_eq!(state(&checks, "peer-gids"), Some(CheckState::Missing), "{checks:?}");
        let image = image.file(
            "sys/class/infiniband/mlx5_0/ports/1/gids/3",
            "0000:0000:0000:0000:0000:ffff:7f00:0001\n",
        );
        let machine = Machine::of_image(&image.0, 1000, |_| None);
        let checks = check_path(&machine, there, 0);
        let found = checks.iter().find(|check| check.id == "peer-gids").expect("the check");
        assert_eq!(
            found.finding,
            "GIDs for this path: mlx5_0 port 1 index 3 here, mlx5_0 port 1 index 3 there"
        );
        // The JSON output has the same checks.
        let read: Value = serde_json::from_str(&super::super::json(&checks)).expect("JSON");
        let ids = read["checks"].as_array().expect("checks").iter().map(|check| &check["id"]);
        assert_eq!(
            ids.collect::<Vec<_>>(),
            ["peer", "peer-back", "peer-version", "peer-mtu", "peer-gids"]
        );
        assert_eq!(state(&checks, "peer"), Some(CheckState::Ok), "{checks:?}");
        assert_eq!(state(&checks, "peer-back"), Some(CheckState::Ok), "{checks:?}");
        assert_eq!(state(&checks, "peer-version"), Some(CheckState::Ok), "{checks:?}");
        assert_eq!(state(&checks, "peer-mtu"), Some(CheckState::Ok), "{checks:?}");
        // A socket that never answers.
        let mute = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let checks = check_path(&machine, mute.local_addr().expect("an address"), 0);
        assert_eq!(state(&checks, "peer"), Some(CheckState::Missing), "{checks:?}");
        // A rule at the end of a chain has no effect after a rule that drops, so no advice adds a
        // rule.
        let advice: Vec<_> = checks.iter().filter_map(|check| check.remedy.as_deref()).collect();
        assert!(advice.iter().any(|advice| advice.contains("nft insert rule")), "{advice:?}");
        assert!(!advice.iter().any(|advice| advice.contains("add rule")), "{advice:?}");
    }

    #[test]
    fn both_machines_need_a_gid_for_the_path() {
        let side = |devices: u32, gids: &[&str]| json!({ "devices": devices, "gids": gids, "address": "10.0.0.1" });
        let none = side(0, &[]);
        assert_eq!(gids(&none, &side(1, &["rxe0 port 1 index 1"])).state, CheckState::Ok);
        assert_eq!(gids(&none, &side(1, &[])).state, CheckState::Missing);
        assert!(gids(&side(1, &[]), &none).finding.ends_with("10.0.0.1, here"));
        assert_eq!(gids(&none, &json!({ "version": "0" })).state, CheckState::Unknown);
        assert!(!gids(&none, &side(1, &["a\u{1b}[2J"])).finding.contains('\u{1b}'));
    }

    #[test]
    fn a_datagram_of_another_format_is_no_question() {
        assert_eq!(
            unpack(b"fvdoctor{\"what\":1}\0\0\0").map(|output| output["what"].clone()),
            Some(1.into())
        );
        for nonsense in [&b""[..], b"fvdocto", b"fvdoctor", b"fvdoctor{", b"\0\0\0", &[0xff; 64]] {
            assert!(unpack(nonsense).is_none(), "{nonsense:?}");
        }
        let long = pack(&json!({ "what": "question" }), 100_000);
        assert_eq!(long.len(), ROOM);
    }

    #[test]
    fn a_path_mtu_leaves_space_for_the_headers() {
        assert_eq!(
            [9000, 4176, 4175, 1500, 1280, 300].map(path_mtu),
            [Some(4096), Some(4096), Some(2048), Some(1024), Some(1024), None]
        );
    }
}
