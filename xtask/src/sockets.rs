//! The sockets of a network namespace, by the tables below /proc/net.

use std::fs;

/// Whether a process of this network namespace listens on `port`, by TCP or by Ferroverbs'
/// librdmacm. A probing connection would use up the server's only accept.
pub fn is_listened_to(port: u16) -> bool {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    listening_at("/proc/net", port) || serves(&sockets, TCP_SPACE, port)
}

/// Whether a TCP connection of this network namespace has the local port `port`.
pub fn is_connected(port: u16) -> bool {
    has_socket_at("/proc/net", port, ESTABLISHED)
}

/// The space of ports of connections (`enum rdma_port_space`).
pub const TCP_SPACE: u64 = 0x0106;

/// Whether /proc/net/unix shows a process that accepts librdmacm requests for a port, by the name
/// of its socket.
pub fn serves(sockets: &str, space: u64, port: u16) -> bool {
    // The address follows the name.
    let name = format!("/listen/{:#x}/", space << 16 | u64::from(port));
    sockets.lines().any(|line| line.contains(&name))
}

/// Whether a TCP socket listens on `port`, in the network namespace with these tables.
pub fn listening_at(tables: &str, port: u16) -> bool {
    has_socket_at(tables, port, LISTEN)
}

fn has_socket_at(tables: &str, port: u16, state: &str) -> bool {
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("{tables}/{table}")).ok())
        .any(|table| table_has(&table, port, state))
}

/// States of a socket in /proc/net/tcp (include/net/tcp_states.h).
const ESTABLISHED: &str = "01";
const LISTEN: &str = "0A";

/// Looks for a line with local port `port` and state `wanted` in the text of /proc/net/tcp.
fn table_has(table: &str, port: u16, wanted: &str) -> bool {
    rows(table).any(|(local, state)| local == Some(port) && state == Some(wanted))
}

/// Looks for a line with local port `port` in the text of /proc/net/udp.
pub fn has_port(table: &str, port: u16) -> bool {
    rows(table).any(|(local, _)| local == Some(port))
}

/// The local port and the state of each line of such a table.
fn rows(table: &str) -> impl Iterator<Item = (Option<u16>, Option<&str>)> {
    table.lines().skip(1).map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|a| a.rsplit_once(':')).map(|(_, p)| p);
        (local.and_then(|p| u16::from_str_radix(p, 16).ok()), fields.nth(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn only_a_listening_socket_counts() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
             0: 0100007F:4853 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:4854 0100007F:4853 01 00000000:00000000\n";
        assert!(table_has(table, 0x4853, LISTEN) && table_has(table, 0x4854, ESTABLISHED));
        assert!(!table_has(table, 0x4854, LISTEN) && !table_has(table, 0x4853, ESTABLISHED));
    }

    #[test]
    fn a_listener_of_our_own_is_seen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listened_to(port));
    }
}
