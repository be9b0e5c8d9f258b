//! Flow specifications from the application's form (`ibv_create_flow(3)`) to the kernel's
//! (`ib_uverbs_flow_spec_*` of `<rdma/ib_user_verbs.h>`). Both are a type, a size and a value with
//! its mask, but padded differently; types that grew over time may be shorter or longer than the
//! known size.

#![forbid(unsafe_code)]

use abi::{
    IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE,
    IBV_FLOW_SPEC_INNER, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6,
    IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL,
};

use super::status::set;
use cface::Errno;

/// Type and size at the start of a specification.
pub(super) fn head(spec: &[u8]) -> Option<(u32, usize)> {
    let (&kind, rest) = spec.split_first_chunk()?;
    let (&size, _) = rest.split_first_chunk()?;
    Some((u32::from_ne_bytes(kind), u16::from_ne_bytes(size).into()))
}

/// Bytes of [`head`].
pub(super) const HEAD: usize = 6;

/// An object that an action names by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedObject {
    /// A `verbs_flow_action`.
    Action(usize),
    /// A `verbs_counters`.
    Counters(usize),
}

/// Appends the kernel's form of `spec`, which is as long as its head says. `handle_of` looks up the
/// kernel's number of an object.
///
/// # Errors
/// `EINVAL` an unknown type or a size too small; `EOPNOTSUPP` a mask on something we do not know.
/// Both with errno set.
pub(super) fn convert(
    spec: &[u8],
    handle_of: impl FnOnce(NamedObject) -> u32,
    kernel: &mut Vec<u8>,
) -> Result<(), Errno> {
    let invalid = || set(Errno::EINVAL);
    let (kind, _) = head(spec).ok_or_else(invalid)?;
    let inner = kind & IBV_FLOW_SPEC_INNER;
    let body = match kind & !IBV_FLOW_SPEC_INNER {
        IBV_FLOW_SPEC_ETH => fixed(spec, 6, 16),
        IBV_FLOW_SPEC_IPV4 => fixed(spec, 8, 8),
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => fixed(spec, 6, 4),
        IBV_FLOW_SPEC_ESP | IBV_FLOW_SPEC_GRE => fixed(spec, 8, 8),
        IBV_FLOW_SPEC_MPLS => fixed(spec, 8, 4),
        IBV_FLOW_SPEC_IPV4_EXT => {
            // The kernel tells the two forms of IPv4 apart by their size.
            let body = growing(spec, Filter { member_bytes: 12, kernel: 12 })?;
            append(kernel, IBV_FLOW_SPEC_IPV4 | inner, &body);
            return Ok(());
        }
        IBV_FLOW_SPEC_IPV6 => Some(growing(spec, Filter { member_bytes: 39, kernel: 40 })?),
        IBV_FLOW_SPEC_VXLAN_TUNNEL => Some(growing(spec, Filter { member_bytes: 4, kernel: 4 })?),
        IBV_FLOW_SPEC_ACTION_TAG => spec.get(8..12).map(|tag| [tag, &[0; 4]].concat()),
        IBV_FLOW_SPEC_ACTION_DROP => Some(Vec::new()),
        IBV_FLOW_SPEC_ACTION_HANDLE => {
            address(spec).map(|at| numbered(handle_of(NamedObject::Action(at))))
        }
        IBV_FLOW_SPEC_ACTION_COUNT => {
            address(spec).map(|at| numbered(handle_of(NamedObject::Counters(at))))
        }
        _ => None,
    };
    append(kernel, kind, &body.ok_or_else(invalid)?);
    Ok(())
}

/// Head and body: the kernel's head has 8 bytes.
fn append(kernel: &mut Vec<u8>, kind: u32, body: &[u8]) {
    // All sizes are below 100.
    let size = 8 + body.len() as u16;
    kernel.extend_from_slice(&kind.to_ne_bytes());
    kernel.extend_from_slice(&size.to_ne_bytes());
    kernel.extend_from_slice(&[0; 2]);
    kernel.extend_from_slice(body);
}

/// Value and mask of `len` bytes each, from `offset` on.
fn fixed(spec: &[u8], offset: usize, len: usize) -> Option<Vec<u8>> {
    spec.get(offset..offset + 2 * len).map(<[u8]>::to_vec)
}

/// The known part of a filter that grew over time.
#[derive(Clone, Copy, Debug)]
struct Filter {
    /// Bytes of its members, without padding at the end.
    member_bytes: usize,
    /// Bytes of the kernel's form.
    kernel: usize,
}

/// Value and mask of a filter whose length follows from the size of the specification. Bytes beyond
/// what we know must not be masked in.
fn growing(spec: &[u8], filter: Filter) -> Result<Vec<u8>, Errno> {
    let both = spec.get(8..).unwrap_or_default();
    let len = both.len() / 2;
    let (value, mask) = both.split_at(len);
    let mask = mask.get(..len).unwrap_or_default();
    let (Some(value), Some((mask, unknown))) =
        (value.get(..filter.member_bytes), mask.split_at_checked(filter.member_bytes))
    else {
        return Err(set(Errno::EINVAL));
    };
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(set(Errno::EOPNOTSUPP));
    }
    let mut body = Vec::with_capacity(2 * filter.kernel);
    for part in [value, mask] {
        let end = body.len() + filter.kernel;
        body.extend_from_slice(part);
        body.resize(end, 0);
    }
    Ok(body)
}

fn address(spec: &[u8]) -> Option<usize> {
    let (&address, _) = spec.get(8..)?.split_first_chunk()?;
    Some(usize::from_ne_bytes(address))
}

fn numbered(handle: u32) -> Vec<u8> {
    [handle.to_ne_bytes(), [0; 4]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: u32, size: u16, rest: &[u8]) -> Vec<u8> {
        let mut spec = Vec::new();
        spec.extend(kind.to_ne_bytes());
        spec.extend(size.to_ne_bytes());
        spec.extend(rest);
        spec.resize(size.into(), 0);
        spec
    }

    fn kernel(spec: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut kernel = Vec::new();
        convert(spec, |named| if named == NamedObject::Action(5) { 77 } else { 88 }, &mut kernel)?;
        Ok(kernel)
    }

    #[test]
    fn value_and_mask_move_behind_the_longer_head() {
        let eth: Vec<u8> = (0..34).collect();
        let converted = kernel(&spec(IBV_FLOW_SPEC_ETH, 40, &eth)).expect("a known type");
        assert_eq!(converted[..8], [32, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(converted[8..], eth[..32]);
    }

    #[test]
    fn the_longer_ipv4_filter_is_told_apart_by_its_size() {
        let converted =
            kernel(&spec(IBV_FLOW_SPEC_IPV4_EXT | 0x100, 32, &[9; 26])).expect("a known type");
        assert_eq!(converted[..8], [0x30, 1, 0, 0, 32, 0, 0, 0]);
        assert_eq!(converted[8..], [9; 24]);
    }

    #[test]
    fn filters_may_be_shorter_or_longer_than_ours() {
        let ipv6 = |size| spec(IBV_FLOW_SPEC_IPV6, size, &[7; 100][..usize::from(size) - 6]);
        assert_eq!(kernel(&ipv6(84)), Err(Errno::EINVAL));
        let short = kernel(&ipv6(86)).expect("the first form");
        assert_eq!((short.len(), short[46], short[47], short[87]), (88, 7, 0, 0));
        assert_eq!(kernel(&ipv6(90)), Err(Errno::EOPNOTSUPP));
        let mut tunnel = spec(IBV_FLOW_SPEC_VXLAN_TUNNEL, 24, &[3; 10]);
        tunnel[16..20].fill(4);
        let long = kernel(&tunnel).expect("no mask on what we do not know");
        assert_eq!(long[8..], [3, 3, 3, 3, 4, 4, 4, 4]);
    }

    #[test]
    fn actions_name_objects_by_the_kernels_number() {
        let mut rest = vec![0; 2];
        rest.extend(5_usize.to_ne_bytes());
        let handle = kernel(&spec(IBV_FLOW_SPEC_ACTION_HANDLE, 16, &rest)).expect("a known type");
        assert_eq!(handle[8..], [77, 0, 0, 0, 0, 0, 0, 0]);
        let count = kernel(&spec(IBV_FLOW_SPEC_ACTION_COUNT, 16, &rest)).expect("a known type");
        assert_eq!(count[8..], [88, 0, 0, 0, 0, 0, 0, 0]);
        let drop = kernel(&spec(IBV_FLOW_SPEC_ACTION_DROP, 8, &[])).expect("a known type");
        assert_eq!(drop, [1, 0x10, 0, 0, 8, 0, 0, 0]);
    }

    #[test]
    fn unknown_types_and_cut_specifications_are_refused() {
        assert_eq!(kernel(&spec(99, 40, &[])), Err(Errno::EINVAL));
        assert_eq!(kernel(&[1, 2, 3]), Err(Errno::EINVAL));
        let whole = spec(IBV_FLOW_SPEC_GRE, 24, &[1; 18]);
        for len in 0..whole.len() {
            assert_eq!(kernel(&whole[..len]), Err(Errno::EINVAL));
        }
    }
}
