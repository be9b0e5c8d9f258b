use super::*;
use crate::device::CONNECTX_6_DX;

/// A structure from its fields of four bytes, in the order of the host.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn word(answer: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(answer[at..at + 4].try_into().expect("four bytes"))
}

#[test]
fn a_context_is_opened_without_devx_and_with_pages_on_demand() {
    let devx = words(&[16, 4, 1, 0, 1, 0, 3, 0]);
    assert!(!AllocContext::parse(&devx).is_served());
    let plain = words(&[16, 4, 0, 0, 1, 0, 3, 0]);
    let request = AllocContext::parse(&plain);
    assert!(request.is_served());
    // The first release of the structure knows neither flags nor capabilities.
    assert!(!AllocContext::parse(&plain[..8]).is_served());
    let answer = request.answer(&CONNECTX_6_DX, None);
    assert_eq!((word(&answer, 4), word(&answer, 8)), (512, 0));
    assert_eq!((word(&answer, 20), word(&answer, 40)), (32768, 72));
    assert_eq!((answer[44], answer[45], answer[46], answer[47]), (1, 3, 1, 0));
    assert_eq!((word(&answer, 36), word(&answer, 56), word(&answer, 60)), (0, 12, 1));
    let answer = request.answer(&CONNECTX_6_DX, Some(0x40));
    assert_eq!((word(&answer, 36), answer[47], word(&answer, 48)), (1, 1, 0x40));
}

#[test]
fn completion_queues_have_a_buffer_a_record_and_a_size() {
    let request = words(&[0x1000, 0, 0x2000, 0, 64, 0, 3, 0]);
    // Flags lie in the upper half of the sixth word.
    let mut request = request;
    request[22..24].copy_from_slice(&UAR_PAGE_INDEX.to_ne_bytes());
    let geometry = cq::Geometry { entries: 256, entry_bytes: 64 };
    let expected = CreateCq { buffer: 0x1000, record: 0x2000, geometry };
    assert_eq!(CreateCq::parse(&request, 255), Ok(expected));
    request[20] = 1;
    assert_eq!(CreateCq::parse(&request, 255), Err(Refusal::Unsupported));
    request[20] = 0;
    request[22] = 6;
    assert_eq!(CreateCq::parse(&request, 255), Err(Refusal::Unsupported));
    request[22] = 2;
    assert_eq!(CreateCq::parse(&request, u32::MAX), Err(Refusal::Invalid));
    request[16] = 65;
    assert_eq!(CreateCq::parse(&request, 255), Err(Refusal::Invalid));
    assert_eq!(CreateCq::parse(&[], 255), Err(Refusal::Invalid));
    let mut resize = words(&[0x3000, 0, 0, 0]);
    resize[8..10].copy_from_slice(&128u16.to_ne_bytes());
    let geometry = cq::Geometry { entries: 8, entry_bytes: 128 };
    assert_eq!(ResizeCq::parse(&resize, 7), Ok(ResizeCq { buffer: 0x3000, geometry }));
    assert_eq!(ResizeCq::parse(&resize[..8], 7), Err(Refusal::Invalid));
}

#[test]
fn the_send_queue_of_a_qp_follows_the_receive_queue() {
    let request =
        |flags, shift| words(&[0x1000, 0, 0x2000, 0, 64, 16, shift, flags, 0x55, 9, 0, 0, 0, 0]);
    let qp = CreateQp::parse(&request(1 << 3 | 2, 6)).expect("valid");
    assert_eq!((qp.buffer, qp.record, qp.user_index, qp.register), (0x1000, 0x2000, 0x55, 9));
    assert_eq!(qp.send, sq::Geometry { offset: 1024, blocks: 64 });
    assert_eq!((qp.receive.entries, qp.receive.shift, qp.receive.is_signed), (16, 6, false));
    assert_eq!(word(&qp.answer(), 0), 9);
    assert!(CreateQp::parse(&request(1, 6)).expect("valid").receive.is_signed);
    for flags in [1 << 2, 1 << 4, 1 << 5, 1 << 11, 1 << 31] {
        assert_eq!(CreateQp::parse(&request(flags, 6)), Err(Refusal::Unsupported));
    }
    assert_eq!(CreateQp::parse(&request(0, 40)), Err(Refusal::Invalid));
    // No queues, no buffer.
    assert!(CreateQp::parse(&[]).is_ok());
}

#[test]
fn addresses_that_overflow_or_are_null_are_refused() {
    let request = |low, high| words(&[low, high, 0x2000, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(CreateQp::parse(&request(0, 0)), Err(Refusal::Invalid));
    assert_eq!(CreateQp::parse(&request(0x1002, 0)), Err(Refusal::Invalid));
    assert_eq!(CreateQp::parse(&request(0xffff_fff0, u32::MAX)), Err(Refusal::Invalid));
    assert!(CreateQp::parse(&request(0x1000, 0)).is_ok());
}

#[test]
fn shared_receive_queues_take_their_size_from_the_core() {
    let mut request = words(&[0x1000, 0, 0x2000, 0, 0, 0, 0x99, 0]);
    let srq = CreateSrq::parse(&request, 255, 3).expect("valid");
    assert_eq!((srq.geometry.entries, srq.geometry.shift, srq.user_index), (256, 6, 0x99));
    assert_eq!(CreateSrq::parse(&request, 0, 3), Err(Refusal::Invalid));
    request[16] = 1;
    assert_eq!(CreateSrq::parse(&request, 255, 3), Err(Refusal::Unsupported));
}

#[test]
fn work_queues_have_no_strides() {
    let mut request = words(&[0x1000, 0, 0x2000, 0, 16, 5, 0x77, 0, 0, 0, 0, 0]);
    let wq = CreateWq::parse(&request).expect("valid");
    assert_eq!((wq.geometry.entries, wq.geometry.shift, wq.user_index), (16, 5, 0x77));
    request[32] = 1;
    assert_eq!(CreateWq::parse(&request), Err(Refusal::Unsupported));
}

#[test]
fn answers_have_the_layout_of_the_header() {
    assert_eq!(word(&number(0x1234), 0), 0x1234);
    let answer = create_ah([1, 2, 3, 4, 5, 6]);
    assert_eq!((word(&answer, 0), &answer[4..10]), (16, &[1, 2, 3, 4, 5, 6][..]));
    assert_eq!((word(&modify_qp(), 0), word(&length_only(), 0)), (16, 8));
    assert_eq!((word(&query_device(200), 4), word(&query_device(40), 4)), (104, 40));
}

#[test]
fn offsets_for_mmap_have_a_command_and_an_index() {
    for command in [MmapCommand::CoreClock, MmapCommand::ClockInfo, MmapCommand::Unknown(3)] {
        let offset = command.offset(4096);
        assert_eq!(MmapCommand::of(offset, 4096), Some((command, 0)));
        assert_eq!(MmapCommand::of(offset + 4096 * 7, 4096), Some((command, 7)));
        let large = offset + 4096 * (2 << 16 | 5);
        assert_eq!(MmapCommand::of(large, 4096), Some((command, 2 << 8 | 5)));
    }
    assert_eq!(MmapCommand::of(1, 0), None);
}
