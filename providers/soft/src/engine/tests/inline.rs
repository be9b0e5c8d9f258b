//! Tests that inline data belongs to the application again when the post returns. A request copies
//! its inline data, however long it waits.

use super::*;

/// The data is longer than the limit up to which data is copied into the ring
/// (`FERROVERBS_SOFT_EAGER`).
#[test]
fn long_inline_data_keeps_its_contents_after_the_post() {
    let size = 9000;
    let adapter = adapter(true);
    // The QP waits for the peer without a limit.
    let patient = ibv_qp_attr { rnr_retry: 7, timeout: 0, ..Zeroed::zeroed() };
    assert!(size > adapter.identity.eager_bytes());
    for connected_before in [true, false] {
        let mut a = Side::with(&adapter, QpType::Rc, 300_001, size as u32, None);
        let b = Side::new(&adapter, QpType::Rc, 300_001);
        a.connect_as(b.qp.qpn(), patient);
        if connected_before {
            b.connect_as(a.qp.qpn(), patient);
        }
        fill(&mut a, 1);
        let posted = a.memory[..size].to_vec();
        let inline = Request { flags: IBV_SEND_INLINE, ..request(IBV_WR_SEND, &b) };
        a.send(inline, &[a.sge(0, size)]);
        fill(&mut a, 2);
        if !connected_before {
            b.connect_as(a.qp.qpn(), patient);
        }
        b.receive(1, &[b.sge(0, size)]);
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
        assert!(b.memory[..size] == posted, "connected before: {connected_before}");
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    }
}
