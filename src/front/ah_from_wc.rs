//! The global part of a reply address, from the 40 bytes that precede a received datagram: a GRH or
//! IPv6 header, or an IPv4 header in the second half (`ibv_create_ah_from_wc(3)`; IBTA 1.7 A17, RFC
//! 791, RFC 8200).

use abi::{
    IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2, ibv_ah_attr, ibv_gid,
    ibv_gid_type_sysfs,
};

use super::context::Context;
use super::gid;
use cface::Errno;

/// The sender's address, and the destination address, of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply {
    sender: [u8; 16],
    local: [u8; 16],
    gid_type: ibv_gid_type_sysfs,
    hop_limit: u8,
    traffic_class: u8,
}

const NEXT_HEADER_UDP: u8 = 17;
const NEXT_HEADER_IBA: u8 = 0x1b;

/// Fills the global part of `attr`.
///
/// # Errors
/// `EPROTONOSUPPORT` neither header; `EINVAL` a multicast address; of the GID table when it does
/// not have the local address.
pub(crate) fn global_part(
    context: Context,
    port_num: u8,
    header: &[u8; 40],
    attr: &mut ibv_ah_attr,
) -> Result<(), Errno> {
    let reply = parse(header)?;
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid { raw: reply.sender };
    attr.grh.sgid_index = find_gid(context, u32::from(port_num), &reply)?;
    attr.grh.hop_limit = reply.hop_limit;
    attr.grh.traffic_class = reply.traffic_class;
    Ok(())
}

/// Searches until the table ends, and returns the error at its end. As in rdma-core, the type of
/// each entry on the way must be readable, also of the empty ones, which count as zeros.
fn find_gid(context: Context, port: u32, reply: &Reply) -> Result<u8, Errno> {
    for index in 0..=u8::MAX {
        let entry = u32::from(index);
        let found = gid::gid_or_zeros(context, port, entry)?.bytes();
        let gid_type = gid::type_as_sysfs(context, port, entry)?;
        if (found, gid_type) == (reply.local, reply.gid_type) {
            return Ok(index);
        }
    }
    Err(Errno::EINVAL)
}

fn parse(header: &[u8; 40]) -> Result<Reply, Errno> {
    let (v6, v4) = (header.first_chunk(), header.last_chunk());
    let (Some(v6), Some(v4)) = (v6, v4) else { return Err(Errno::EPROTONOSUPPORT) };
    let &[first, second, _, _, _, _, next_header, hop_limit] = v6;
    match (first >> 4, is_ipv4(v4)) {
        (6, false) => {}
        (6, true) => return parse_v4(v4),
        (version, _) if version != 6 && v4.first().is_some_and(|byte| byte >> 4 == 4) => {
            return parse_v4(v4);
        }
        _ => return Err(Errno::EPROTONOSUPPORT),
    }
    let (_, addresses) = header.split_at(8);
    let (Some(&sender), Some(&local)) =
        (addresses.first_chunk::<16>(), addresses.last_chunk::<16>())
    else {
        return Err(Errno::EPROTONOSUPPORT);
    };
    if local.first() == Some(&0xff) {
        return Err(Errno::EINVAL);
    }
    let gid_type = match next_header {
        NEXT_HEADER_UDP => IBV_GID_TYPE_SYSFS_ROCE_V2,
        NEXT_HEADER_IBA => IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
        _ => return Err(Errno::EPROTONOSUPPORT),
    };
    Ok(Reply { sender, local, gid_type, hop_limit, traffic_class: (first << 4) | (second >> 4) })
}

fn parse_v4(header: &[u8; 20]) -> Result<Reply, Errno> {
    let &[_, tos, _, _, _, _, _, _, ttl, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = header;
    if d0 >> 4 == 0xe {
        return Err(Errno::EINVAL);
    }
    let mapped = |a, b, c, d| std::net::Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets();
    Ok(Reply {
        sender: mapped(s0, s1, s2, s3),
        local: mapped(d0, d1, d2, d3),
        gid_type: IBV_GID_TYPE_SYSFS_ROCE_V2,
        hop_limit: ttl,
        traffic_class: tos,
    })
}

/// A header that starts like IPv6 may be old buffer content before an IPv4 header. As in rdma-core,
/// the shortest header length and a correct checksum decide for IPv4, regardless of the version
/// field. The sum is folded once.
fn is_ipv4(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks::<2>();
    let word = |at: usize| words.get(at).map_or(0, |&word| u16::from_be_bytes(word));
    let sum: u32 =
        (0..words.len()).filter(|&at| at != CHECKSUM).map(|at| u32::from(word(at))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header.first().is_some_and(|first| first & 0xf == 5) && word(CHECKSUM) == !(folded as u16)
}

/// Index of the checksum word of an IPv4 header.
const CHECKSUM: usize = 5;

/// The low 20 bits of the first word; meaningful with a GRH only, but told in either case.
pub(crate) fn flow_label(header: &[u8; 40]) -> u32 {
    header.first_chunk().map_or(0, |&first| u32::from_be_bytes(first) & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 192.0.2.1 to 192.0.2.2, ttl 64, tos 8, UDP.
    fn ipv4() -> [u8; 20] {
        let mut header = [0x45, 8, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
        let (words, _) = header.as_chunks::<2>();
        let sum: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
        let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn ipv6(next_header: u8) -> [u8; 40] {
        let mut header = [0; 40];
        header[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 0, next_header, 63]);
        header[8] = 0xfe;
        header[23] = 1;
        header[24] = 0xfe;
        header[39] = 2;
        header
    }

    /// IBTA 1.7 A17.4.5.1.
    #[test]
    fn an_ipv4_header_sits_in_the_second_half() {
        let mut header = [0; 40];
        header[20..].copy_from_slice(&ipv4());
        let reply = parse(&header).expect("IPv4");
        assert_eq!(reply.sender[10..], [0xff, 0xff, 192, 0, 2, 1]);
        assert_eq!(reply.local[10..], [0xff, 0xff, 192, 0, 2, 2]);
        assert_eq!((reply.hop_limit, reply.traffic_class), (64, 8));
        // Even when the first half looks like IPv6, a right checksum decides.
        header[0] = 0x60;
        assert_eq!(parse(&header), Ok(reply));
        header[30] ^= 1;
        assert_ne!(parse(&header), Ok(reply));
    }

    #[test]
    fn an_ipv6_header_tells_its_kind_by_what_follows() {
        let reply = parse(&ipv6(NEXT_HEADER_UDP)).expect("RoCE v2");
        assert_eq!((reply.sender[15], reply.local[15]), (1, 2));
        assert_eq!(reply.gid_type, IBV_GID_TYPE_SYSFS_ROCE_V2);
        assert_eq!((reply.traffic_class, reply.hop_limit), (0xab, 63));
        let reply = parse(&ipv6(NEXT_HEADER_IBA)).expect("GRH");
        assert_eq!(reply.gid_type, IBV_GID_TYPE_SYSFS_IB_ROCE_V1);
        assert_eq!(parse(&ipv6(6)), Err(Errno::EPROTONOSUPPORT));
    }

    #[test]
    fn multicast_and_garbage_have_no_reply_address() {
        let mut header = ipv6(NEXT_HEADER_UDP);
        header[24] = 0xff;
        assert_eq!(parse(&header), Err(Errno::EINVAL));
        let mut header = [0; 40];
        assert_eq!(parse(&header), Err(Errno::EPROTONOSUPPORT));
        header[20..].copy_from_slice(&ipv4());
        header[36] = 0xe0;
        assert_eq!(parse(&header), Err(Errno::EINVAL));
    }
}
