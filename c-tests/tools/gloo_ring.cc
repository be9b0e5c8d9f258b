// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Gloo, PyTorch's library of collective operations, over soft by its transport "ibverbs":
//
//     gloo_ring RANK RANKS FOLDER
//
// Each process gets its rank, the number of ranks, and an empty folder for the rendezvous. In hosts
// of `ferroverbs cluster` the ranks use GID 1. Every element of every result is checked; rank 0
// prints the number of wrong elements.
#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

// Small integers, so that every sum is exact in any order.
float value(int rank, size_t i, int round)
{
	return static_cast<float>(rank + 1 + static_cast<int>(i % 7) + round);
}

class Ranks {
public:
	Ranks(int rank, int ranks, std::shared_ptr<gloo::Context> context)
	    : rank_(rank), ranks_(ranks), context_(std::move(context)), barrier_(keep<gloo::BarrierAllToAll>(context_))
	{
	}

	// The number of wrong elements in sums over all ranks. The algorithm's buffers are
	// registered once and used `rounds` times.
	template <typename Algorithm> long sums(size_t elements, int rounds)
	{
		auto &data = keep<std::vector<float>>(elements);
		auto &algorithm = keep<Algorithm>(context_, std::vector<float *>{data.data()}, static_cast<int>(elements));
		long wrong = 0;
		for (int round = 0; round < rounds; round++) {
			for (size_t i = 0; i < elements; i++)
				data[i] = value(rank_, i, round);
			algorithm.run();
			for (size_t i = 0; i < elements; i++) {
				float sum = 0;
				for (int rank = 0; rank < ranks_; rank++)
					sum += value(rank, i, round);
				wrong += data[i] != sum;
			}
			barriers(1);
		}
		return wrong;
	}

	// From each rank in turn to all others.
	long broadcasts(size_t elements)
	{
		long wrong = 0;
		for (int root = 0; root < ranks_; root++) {
			auto &data = keep<std::vector<float>>(elements);
			auto &algorithm = keep<gloo::BroadcastOneToAll<float>>(context_, std::vector<float *>{data.data()}, elements, root);
			for (size_t i = 0; i < elements; i++)
				data[i] = rank_ == root ? value(root, i, 0) : -1;
			algorithm.run();
			for (size_t i = 0; i < elements; i++)
				wrong += data[i] != value(root, i, 0);
			barriers(1);
		}
		return wrong;
	}

	// From each rank to all ranks, at the rank's place.
	long gathers(size_t elements)
	{
		auto &mine = keep<std::vector<float>>(elements);
		auto &all = keep<std::vector<float>>(elements * static_cast<size_t>(ranks_));
		auto &algorithm =
		    keep<gloo::AllgatherRing<float>>(context_, std::vector<const float *>{mine.data()}, all.data(), static_cast<int>(elements));
		long wrong = 0;
		for (int round = 0; round < 3; round++) {
			for (size_t i = 0; i < elements; i++)
				mine[i] = value(rank_, i, round);
			algorithm.run();
			for (int rank = 0; rank < ranks_; rank++)
				for (size_t i = 0; i < elements; i++)
					wrong += all[static_cast<size_t>(rank) * elements + i] != value(rank, i, round);
			barriers(1);
		}
		return wrong;
	}

	// After a barrier no rank writes to earlier results.
	void barriers(int rounds)
	{
		for (int round = 0; round < rounds; round++)
			barrier_.run();
	}

private:
	// Makes an object that is never destroyed. A Gloo algorithm returns with notifications in
	// flight, and its destructor throws if their completions are still missing.
	template <typename Kept, typename... Args> Kept &keep(Args &&...args)
	{
		auto made = std::make_shared<Kept>(std::forward<Args>(args)...);
		kept_.push_back(made);
		return *made;
	}

	int rank_, ranks_;
	std::vector<std::shared_ptr<void>> kept_;
	std::shared_ptr<gloo::Context> context_;
	gloo::BarrierAllToAll &barrier_;
};

[[noreturn]] void run(int rank, int ranks, const char *folder)
{
	const int gid = std::getenv("FERROVERBS_HOST") ? 1 : 0;
	auto device = gloo::transport::ibverbs::CreateDevice({"soft0", 1, gid});
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
	gloo::rendezvous::FileStore store(folder);
	context->connectFullMesh(store, device);
	Ranks group(rank, ranks, context);

	long wrong = 0;
	for (size_t elements : {1, 1000, 100000, 4000000}) {
		wrong += group.sums<gloo::AllreduceRing<float>>(elements, 3);
		wrong += group.sums<gloo::AllreduceRingChunked<float>>(elements, 2);
		wrong += group.sums<gloo::AllreduceHalvingDoubling<float>>(elements, 2);
	}
	for (size_t elements : {1, 5000, 300000}) {
		wrong += group.broadcasts(elements);
		wrong += group.gathers(elements);
	}
	group.barriers(100);
	std::printf("rank %d of %d: %ld wrong\n", rank, ranks, wrong);
	std::fflush(stdout);

	// Gloo aborts when a peer ends before the acknowledgement of its last message. So every
	// rank waits until all ranks are here, and nothing is destroyed (see `keep`).
	const std::string end = "end";
	store.set(end + std::to_string(rank), {});
	std::vector<std::string> ends;
	for (int other = 0; other < ranks; other++)
		ends.push_back(end + std::to_string(other));
	store.wait(ends);
	std::_Exit(wrong != 0);
}

} // namespace

int main(int argc, char **argv)
{
	if (argc != 4) {
		std::fprintf(stderr, "usage: %s RANK RANKS FOLDER\n", argv[0]);
		return 2;
	}
	try {
		run(std::atoi(argv[1]), std::atoi(argv[2]), argv[3]);
	} catch (const std::exception &failure) {
		std::fprintf(stderr, "%s\n", failure.what());
		return 1;
	}
}
