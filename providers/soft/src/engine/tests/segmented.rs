//! Tests of segmented sends of a UD QP (TSO) that wait before they are executed. A waiting send
//! keeps the header that it was posted with.

use super::*;
use crate::engine::datagram::ud::MTU;
use soft_semantics::frames::Framing;
use soft_semantics::frames::segmenter::Segmenter;
use soft_semantics::request::Segments;
use soft_semantics::state::QpState;

/// An IP over InfiniBand frame: IPv4 with identification 0xffff, and TCP with sequence number 100,
/// PSH and FIN.
const HEADER: [u8; 44] = [
    8, 0, 0, 0, 0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 80, 1,
    187, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x19, 1, 0, 0, 0, 0, 0,
];
/// The offset of a segment's data in a receive, behind the GRH and the headers of the segment.
const DATA: usize = 40 + HEADER.len();

fn segmented(wr_id: u64, to: &Side, header: &[u8], mss: u16) -> Request {
    let header_len = header.len() as u16;
    let cut = Segments { header: header.as_ptr() as u64, header_len, mss };
    Request { wr_id, operation: RequestOperation::Segments(cut), ..request(IBV_WR_TSO, to) }
}

#[test]
fn segments_that_wait_have_the_headers_of_when_they_were_posted() {
    let (mut a, b) = pair(QpType::Ud, true, 8000);
    fill(&mut a, 7);
    let max_wr = a.qp.attributes().lock().cap.max_send_wr as usize;
    let segmenter =
        Segmenter::new(Framing::Ipoib, MTU as usize, max_wr, HEADER.len()).expect("memory");
    *a.qp.requester().lock().datagrams.segmenter = segmenter;
    for n in 0..20 {
        b.receive(n, &[b.sge(n as usize * 200, 200)]);
    }
    a.modify(QpState::Sqd as u32, 0, Zeroed::zeroed());
    let mut header = HEADER;
    for n in 0..3u8 {
        header[3] = n;
        a.send(segmented(n.into(), &b, &header, 100), &[a.sge(0, 150), a.sge(1000, 100)]);
    }
    header.fill(0xee);
    assert_eq!((a.poll(), b.poll()), (None, None), "nothing begins in SQD");
    a.modify(QpState::Rts as u32, 0, Zeroed::zeroed());
    let data = [&a.memory[..150], &a.memory[1000..1100]].concat();
    for n in 0..9u32 {
        let (request, index) = ((n / 3) as u8, n % 3);
        let got = b.wait(&a);
        let len = if index == 2 { 50 } else { 100 };
        assert_eq!((got.status, got.wr_id), (IBV_WC_SUCCESS, n.into()));
        assert_eq!((got.byte_len as usize, got.src_qp), (DATA + len, a.qp.qpn()));
        let whole = &b.memory[n as usize * 200..][..DATA + len];
        assert_eq!(whole[40..44], [8, 0, 0, request]);
        assert_eq!(whole[46..48], (40 + len as u16).to_be_bytes());
        assert_eq!(whole[48..50], 0xffffu16.wrapping_add(index as u16).to_be_bytes());
        assert_eq!(whole[68..72], (100 + index * 100).to_be_bytes());
        assert_eq!(whole[77], if index == 2 { 0x19 } else { 0x10 });
        assert_eq!(whole[DATA..], data[index as usize * 100..][..len]);
    }
    for n in 0..3 {
        let sent = a.wait(&b);
        assert_eq!((sent.status, sent.wr_id), (IBV_WC_SUCCESS, n));
        assert_eq!((sent.opcode, sent.byte_len), (IBV_WC_TSO, 250));
    }
    assert_eq!(b.poll(), None, "three segments each");
}

#[test]
fn waiting_segmented_sends_are_flushed_as_segmented_sends() {
    let (a, b) = pair(QpType::Ud, true, 1000);
    let segmenter = Segmenter::new(Framing::Ipoib, MTU as usize, 64, HEADER.len()).expect("memory");
    *a.qp.requester().lock().datagrams.segmenter = segmenter;
    a.modify(QpState::Sqd as u32, 0, Zeroed::zeroed());
    a.send(segmented(1, &b, &HEADER, 100), &[a.sge(0, 250)]);
    a.modify(QpState::Err as u32, 0, Zeroed::zeroed());
    let flushed = a.wait(&b);
    assert_eq!((flushed.status, flushed.wr_id), (IBV_WC_WR_FLUSH_ERR, 1));
}
