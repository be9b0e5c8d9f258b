//! Inline data belongs to the application again when the post returns.

use super::*;

/// Longer than what is copied rather than fetched, as it is where `FERROVERBS_SOFT_EAGER` is small.
#[test]
fn long_inline_data_is_what_it_was_when_it_was_posted() {
    let size = 9000;
    let adapter = adapter(true);
    // Waits for the other end for as long as it takes.
    let patient = ibv_qp_attr { rnr_retry: 7, timeout: 0, ..Zeroed::zeroed() };
    assert!(size > adapter.eager_bytes);
    for connected_before in [true, false] {
        let mut a = Side::with(&adapter, Kind::Rc, 300_001, size as u32, None);
        let b = Side::new(&adapter, Kind::Rc, 300_001);
        a.connect_as(b.qp.qpn, patient);
        if connected_before {
            b.connect_as(a.qp.qpn, patient);
        }
        fill(&mut a, 1);
        let posted = a.memory[..size].to_vec();
        let inline = Request { flags: IBV_SEND_INLINE, ..request(IBV_WR_SEND, &b) };
        a.send(inline, &[a.sge(0, size)]);
        fill(&mut a, 2);
        if !connected_before {
            b.connect_as(a.qp.qpn, patient);
        }
        b.receive(1, &[b.sge(0, size)]);
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
        assert!(b.memory[..size] == posted, "connected before: {connected_before}");
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    }
}
