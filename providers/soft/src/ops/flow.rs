//! Steering rules (ibv_create_flow(3)). The C entry points of `engine/frames`; frames are matched
//! against the published rules.

use super::{object, status};
use crate::engine::adapter::SteeringRule;
use crate::engine::frames::counters::Counters;
use crate::engine::queues::qp::Qp;
use crate::engine::refused::errno;
use abi::*;
use soft_semantics::frames::steer::{self, Spec, spec_size};
use soft_semantics::state::QpType;
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A steering rule. The C object comes first.
#[repr(C)]
struct Flow {
    verbs: ibv_flow,
    rule: Arc<SteeringRule>,
    counters: Vec<Arc<Counters>>,
    qp: Arc<Qp>,
}

/// Types whose specification is longer in newer headers. A longer specification is unsupported, not
/// invalid.
const EXTENDED_TYPES: [u32; 3] =
    [IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_VXLAN_TUNNEL];
/// Bytes of type and size.
const HEAD_BYTES: usize = 6;

/// Parses the list of specifications.
///
/// # Errors
/// `EINVAL` an unknown type, or a wrong size.
///
/// # Safety
/// `count` specifications lie at `at`, each as long as its size field.
unsafe fn specs<'a>(mut at: *const u8, count: u8) -> Result<Vec<Spec<'a>>, Errno> {
    let mut specs = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        // SAFETY: each begins with type and size, possibly unaligned.
        let (kind, size) = unsafe {
            (at.cast::<u32>().read_unaligned(), at.add(4).cast::<u16>().read_unaligned())
        };
        let known = spec_size(kind).ok_or(Errno::EINVAL)?;
        let size = usize::from(size);
        if size != known
            && !(size > known && EXTENDED_TYPES.contains(&(kind & !IBV_FLOW_SPEC_INNER)))
        {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `size` bytes by contract.
        let body = unsafe { std::slice::from_raw_parts(at.add(HEAD_BYTES), size - HEAD_BYTES) };
        if size > known {
            // In the longer form, the mask lies at another offset.
            return Err(Errno::EOPNOTSUPP);
        }
        specs.push(Spec { spec_type: kind, body });
        // SAFETY: the caller states that the specification has `size` bytes, so the next
        // specification begins here, or the list ends here.
        at = unsafe { at.add(size) };
    }
    Ok(specs)
}

/// The counters named by a specification.
///
/// # Safety
/// `spec` is an `ibv_flow_spec_counter_action` whose counters are live.
unsafe fn counters_of(spec: &Spec<'_>) -> Result<Arc<Counters>, Errno> {
    let at = std::mem::offset_of!(ibv_flow_spec_counter_action, counters) - HEAD_BYTES;
    let address = spec.body.get(at..at + size_of::<usize>()).and_then(|b| b.try_into().ok());
    let address = usize::from_ne_bytes(address.ok_or(Errno::EINVAL)?);
    if address == 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the address is not 0 (checked above), and the caller states that it belongs to live
    // counters of this provider, given to C by create_counters.
    Ok(unsafe { Counters::share(std::ptr::with_exposed_provenance_mut(address)) })
}

/// ibv_create_flow(3): EINVAL for an invalid rule, or for a QP that is neither UD nor RAW_PACKET;
/// EOPNOTSUPP for unsupported rules (see `steer::check`), including all rules on UD QPs; ENOMEM
/// above the limit.
///
/// # Safety
/// `qp` is a live QP of this provider; `attr` is readable with its specifications behind it, and
/// the objects named by them are live.
pub(super) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    object(|| {
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `attr` is not NULL (checked above) and readable during the call; applications
        // pack the structs, so it may be unaligned.
        let head = unsafe { attr.read_unaligned() };
        // SAFETY: `qp` is a live QP of this provider: the application does not destroy a QP while
        // it makes rules for it.
        let queue = unsafe { Qp::of(qp) };
        if head.comp_mask != 0 || head.port != 1 {
            return Err(Errno::EINVAL);
        }
        match queue.qp_type() {
            QpType::Raw => {}
            QpType::Ud => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        }
        // SAFETY: the caller states that `num_of_specs` specifications lie behind the head; they
        // stay until the call returns, and `list` is not used afterwards.
        let list = unsafe { specs(attr.add(1).cast(), head.num_of_specs)? };
        let wanted = steer::check(head.type_, head.flags, head.priority, &list).map_err(errno)?;
        let counting = list.iter().filter(|spec| spec.spec_type == IBV_FLOW_SPEC_ACTION_COUNT);
        // SAFETY: `specs` checked that each has the size of its type, here of a counter action; the
        // caller states that its counters are live.
        let counters: Vec<_> =
            counting.map(|spec| unsafe { counters_of(spec) }).collect::<Result<_, _>>()?;
        let adapter = queue.adapter();
        let shared = queue.me().upgrade().ok_or(Errno::EINVAL)?;
        // Processes that send frames must know this process.
        adapter.datagrams.meet_all_processes(adapter)?;
        let rule = adapter.steering.add(queue, &wanted, counters.clone())?;
        for c in &counters {
            c.users.fetch_add(1, Ordering::AcqRel);
        }
        queue.unconnected().flows.fetch_add(1, Ordering::AcqRel);
        // SAFETY: a live QP has its context.
        let context = unsafe { (*qp).context };
        let verbs = ibv_flow { comp_mask: 0, context, handle: 0 };
        Ok(Box::into_raw(Box::new(Flow { verbs, rule, counters, qp: shared })).cast())
    })
}

/// ibv_destroy_flow(3).
///
/// # Safety
/// `flow` is a live rule of this provider and is not used any more.
pub(super) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    status(|| {
        // SAFETY: made by create_flow and returned once.
        let flow = unsafe { Box::from_raw(flow.cast::<Flow>()) };
        let adapter = flow.qp.adapter();
        adapter.steering.remove(&flow.rule);
        // A frame in delivery may have found the rule before its removal.
        adapter.datagrams.wait_for_deliveries();
        for c in &flow.counters {
            c.users.fetch_sub(1, Ordering::AcqRel);
        }
        flow.qp.unconnected().flows.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    })
}
