/*
 * Send flags and order: unsignaled requests, sq_sig_all, fence, lists, full queues, and events for
 * solicited requests only, over shared memory. ibv_post_send(3), ibv_req_notify_cq(3).
 */
#include "rig.h"

static struct end *a, *b;
static struct address aa, ba;

static void unsignaled(int sig_all)
{
	struct options o = defaults();
	o.sig_all = sig_all;
	pair_open(a, b, o, &aa, &ba);
	struct ibv_wc w;
	for (int i = 0; i < 11; i++)
		if (end_recv(b, one_piece(0, (uint64_t)i, 0x1000u * (unsigned)i, 4096)))
			die("ibv_post_recv");
	for (int i = 0; i < 11; i++) {
		struct request s = one_piece(IBV_WR_SEND, (uint64_t)i, 0x1000u * (unsigned)i, 100);
		s.flags = i == 10 ? IBV_SEND_SIGNALED : 0;
		end_fill(a, 0x1000u * (unsigned)i, 100, (uint32_t)i);
		if (end_send(a, s))
			die("ibv_post_send");
	}
	for (int i = sig_all ? 0 : 10; i < 11; i++) {
		w = end_wait(a, SENDS);
		check(w.status == IBV_WC_SUCCESS && w.wr_id == (uint64_t)i, "sq_sig_all %d: completion of request %d", sig_all, i);
	}
	check(!end_try(a, SENDS, &w, QUIET_US), "sq_sig_all %d: no other completion", sig_all);
	for (int i = 0; i < 11; i++) {
		w = end_wait(b, RECVS);
		check(w.status == IBV_WC_SUCCESS && w.wr_id == (uint64_t)i && end_verify(b, 0x1000u * (unsigned)i, 100, (uint32_t)i) < 0,
		      "sq_sig_all %d: message %d arrives in its turn", sig_all, i);
	}
	/* Ten queues full of unsignaled requests: their slots are free again after a later
	 * completion. */
	int posted = 0;
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 32; i++) {
			struct request s = one_piece(IBV_WR_RDMA_WRITE, 5, 0, 8);
			s.raddr = ba.addr;
			s.rkey = ba.rkey;
			s.flags = i == 31 ? IBV_SEND_SIGNALED : 0;
			posted += end_send(a, s) == 0;
		}
		for (int i = sig_all ? 0 : 31; i < 32; i++)
			end_wait(a, SENDS);
	}
	check_eq(posted, 640, "sq_sig_all %d: requests posted through a queue of 64", sig_all);
	pair_close(a, b);
}

/* A fenced request starts after all earlier READs: it sends what they brought. */
static void fence(void)
{
	int bad = 0;
	pair_open(a, b, defaults(), &aa, &ba);
	for (uint32_t i = 0; i < 100; i++) {
		uint32_t len = 8u << i % 14;
		end_fill(b, 0, len, i);
		end_fill(a, 0, len, i + 50000);
		end_fill(b, 0x100000, len, i + 60000);
		struct request list[2] = { one_piece(IBV_WR_RDMA_READ, 1, 0, len), one_piece(IBV_WR_RDMA_WRITE, 2, 0, len) };
		list[0].raddr = ba.addr;
		list[1].raddr = ba.addr + 0x100000;
		list[0].rkey = list[1].rkey = ba.rkey;
		list[1].flags |= IBV_SEND_FENCE;
		if (end_send_list(a, list, 2, NULL))
			die("ibv_post_send");
		struct ibv_wc r = end_wait(a, SENDS), w = end_wait(a, SENDS);
		if (r.wr_id != 1 || w.wr_id != 2 || r.status || w.status)
			die("completions out of turn: %d %d", r.status, w.status);
		bad += end_verify(b, 0x100000, len, i) >= 0;
	}
	check_eq(bad, 0, "fenced writes that left before the read's data came");
	pair_close(a, b);
}

/* More than fits: ENOMEM, and bad_wr names the first request that was not taken. */
static void full_queues(void)
{
	struct options o = defaults();
	o.depth = 8;
	pair_open(a, b, o, &aa, &ba);
	int bad = -1, took = 0;
	/* Receives stay until messages come, so the queue does fill. */
	while (took < 100000 && !end_recv(b, one_piece(0, (uint64_t)took, 0, 64)))
		took++;
	check(took >= 8 && took < 100000, "a receive queue of 8 takes %d", took);
	struct request list[3] = { one_piece(0, 1, 0, 64), one_piece(0, 2, 0, 64), one_piece(0, 3, 0, 64) };
	check_eq(end_recv_list(b, list, 3, &bad), ENOMEM, "a full receive queue");
	check_eq(bad, 0, "a full receive queue: bad_wr is the first");
	/* The second request of a list is invalid: the first one is accepted. */
	struct request s[3] = { one_piece(IBV_WR_SEND, 11, 0, 10), one_piece(IBV_WR_SEND, 12, 0, 10), one_piece(IBV_WR_SEND, 13, 0, 10) };
	s[1].pieces = (int)aa.max_send_sge + 1;
	if (aa.max_send_sge >= MAX_SGE || ba.max_recv_sge >= MAX_SGE)
		die("the device takes more pieces than this test has");
	for (int i = 0; i < s[1].pieces; i++)
		s[1].piece[i] = (struct piece){ 0, 1, 0 };
	struct ibv_wc w;
	int err = end_send_list(a, s, 3, &bad);
	check(err == EINVAL || err == ENOMEM, "a request with more pieces than the queue takes is refused (%d)", err);
	check_eq(bad, 1, "bad_wr is the refused request");
	w = end_wait(a, SENDS);
	check(w.wr_id == 11 && w.status == IBV_WC_SUCCESS, "the request before it was taken");
	check(!end_try(a, SENDS, &w, QUIET_US), "the request after it was not");
	w = end_wait(b, RECVS);
	check(w.status == IBV_WC_SUCCESS && w.wr_id == 0, "and arrived");
	/* A receive with one piece too many. */
	check(end_recv(b, (struct request){ .id = 1, .pieces = (int)ba.max_recv_sge + 1 }) != 0, "a receive with more pieces than the queue takes is refused");
	pair_close(a, b);
}

/* Long lists at once, in order. */
static void lists(void)
{
	struct request s[32], r[32];
	int bad = -1, wrong = 0;
	pair_open(a, b, defaults(), &aa, &ba);
	for (int round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 32; i++) {
			uint32_t len = (i * 37 + (uint32_t)round * 211) % 3000;
			r[i] = one_piece(0, i, i * 4096, 4096);
			s[i] = one_piece(i % 3 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, i, i * 4096, len);
			s[i].imm = i;
			end_fill(a, i * 4096, len, i + (uint32_t)round);
		}
		if (end_recv_list(b, r, 32, &bad) || end_send_list(a, s, 32, &bad))
			die("a list of 32 was refused");
		for (unsigned i = 0; i < 32; i++) {
			struct ibv_wc w = end_wait(b, RECVS);
			wrong += w.status || w.wr_id != i || end_verify(b, i * 4096, w.byte_len, i + (uint32_t)round) >= 0;
			w = end_wait(a, SENDS);
			wrong += w.status || w.wr_id != i;
		}
	}
	check_eq(wrong, 0, "wrong completions or data in 20 lists of 32");
	pair_close(a, b);
}

static void solicited(void)
{
	struct options o = defaults();
	o.channel = 1;
	pair_open(a, b, o, &aa, &ba);
	for (int i = 0; i < 8; i++)
		end_recv(b, one_piece(0, (uint64_t)i, 0, 4096));
	struct request s = one_piece(IBV_WR_SEND, 1, 0, 8);
	/* Any completion. */
	check_eq(end_arm(b, 0), 0, "ibv_req_notify_cq");
	check(!end_event(b, 30), "no event before a completion");
	end_send(a, s);
	check(end_event(b, 10000), "an event for a completion");
	end_wait(b, RECVS);
	end_send(a, s);
	end_wait(b, RECVS);
	check(!end_event(b, 30), "one event per request for one");
	/* Armed twice is armed once. */
	end_arm(b, 0);
	end_arm(b, 0);
	end_send(a, s);
	check(end_event(b, 10000), "an event after arming twice");
	check(!end_event(b, 30), "and no second one");
	end_wait(b, RECVS);
	/* Solicited only. */
	end_arm(b, 1);
	end_send(a, s);
	end_wait(b, RECVS);
	check(!end_event(b, 30), "armed for solicited: no event for an unsolicited message");
	s.flags |= IBV_SEND_SOLICITED;
	end_send(a, s);
	check(end_event(b, 10000), "armed for solicited: an event for a solicited one");
	end_wait(b, RECVS);
	/* Arming for any completion overrides an earlier arming for solicited completions. */
	s.flags &= ~(unsigned)IBV_SEND_SOLICITED;
	end_arm(b, 1);
	end_arm(b, 0);
	end_send(a, s);
	check(end_event(b, 10000), "armed for solicited, then for all: an event for an unsolicited one");
	end_wait(b, RECVS);
	/* An error counts as solicited. */
	end_arm(b, 1);
	check_eq(end_modify(b, IBV_QPS_ERR), 0, "to ERR");
	check(end_event(b, 10000), "armed for solicited: an event for a completion with an error");
	for (int i = 0; i < 2; i++)
		check_eq(end_wait(b, RECVS).status, IBV_WC_WR_FLUSH_ERR, "a receive is flushed");
	pair_close(a, b);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	unsignaled(0);
	unsignaled(1);
	fence();
	full_queues();
	lists();
	solicited();
	end_free(b);
	end_free(a);
	return finish();
}
