// SPDX-License-Identifier: MIT OR Apache-2.0
//
// TensorPipe, the library under PyTorch's remote procedure calls, over soft by its transport "ibv":
//
//     tensorpipe_echo serve|call FOLDER
//
// The server writes its address into the folder and echoes messages. The caller keeps messages of
// all lengths in flight on several pipes, checks every byte that returns, and prints the number of
// wrong messages.
#include <tensorpipe/tensorpipe.h>

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr int PIPES = 4;
// A ring of the transport has 2 MiB.
constexpr size_t LENGTHS[] = {0, 1, 47, 4096, 65537, 1 << 20, 2 << 20, 5000001};

// Waits for one callback of the library.
template <typename T> class Answer {
public:
	void operator()(const tensorpipe::Error &error, T value)
	{
		if (error)
			promise_->set_exception(std::make_exception_ptr(std::runtime_error(error.what())));
		else
			promise_->set_value(std::move(value));
	}
	T get() { return promise_->get_future().get(); }

private:
	std::shared_ptr<std::promise<T>> promise_ = std::make_shared<std::promise<T>>();
};

std::shared_ptr<tensorpipe::Context> context()
{
	auto made = std::make_shared<tensorpipe::Context>();
	auto transport = tensorpipe::transport::ibv::create();
	if (!transport->isViable())
		throw std::runtime_error("TensorPipe finds no device that it can use");
	made->registerTransport(0, "ibv", std::move(transport));
	// Tensors by the transport, too.
	made->registerChannel(0, "basic", tensorpipe::channel::basic::create());
	return made;
}

// One buffer by each of the two ways that a message has.
struct Content {
	std::string words;
	Bytes payload, tensor;
};

tensorpipe::Message message(Content &content)
{
	tensorpipe::Message message;
	message.metadata = content.words;
	message.payloads.resize(1);
	message.payloads[0].data = content.payload.data();
	message.payloads[0].length = content.payload.size();
	message.tensors.resize(1);
	message.tensors[0].buffer = tensorpipe::CpuBuffer{content.tensor.data()};
	message.tensors[0].length = content.tensor.size();
	return message;
}

Content receive(tensorpipe::Pipe &pipe)
{
	Answer<tensorpipe::Descriptor> described;
	pipe.readDescriptor(described);
	tensorpipe::Descriptor descriptor = described.get();
	Content content{descriptor.metadata, Bytes(descriptor.payloads.at(0).length), Bytes(descriptor.tensors.at(0).length)};
	tensorpipe::Allocation allocation;
	allocation.payloads.resize(1);
	allocation.payloads[0].data = content.payload.data();
	allocation.tensors.resize(1);
	allocation.tensors[0].buffer = tensorpipe::CpuBuffer{content.tensor.data()};
	Answer<int> placed;
	pipe.read(std::move(allocation), [placed](const tensorpipe::Error &error) mutable { placed(error, 0); });
	placed.get();
	return content;
}

// The content must stay until the answer comes.
Answer<int> send(tensorpipe::Pipe &pipe, Content &content)
{
	Answer<int> sent;
	pipe.write(message(content), [sent](const tensorpipe::Error &error) mutable { sent(error, 0); });
	return sent;
}

void serve(const std::string &folder)
{
	auto library = context();
	auto listener = library->listen({"ibv://127.0.0.1"});
	std::ofstream(folder + "/url.new") << listener->url("ibv");
	if (std::rename((folder + "/url.new").c_str(), (folder + "/url").c_str()) != 0)
		throw std::runtime_error("cannot leave the address in " + folder);
	std::vector<std::shared_ptr<tensorpipe::Pipe>> pipes;
	std::vector<std::future<void>> served;
	for (int i = 0; i < PIPES; i++) {
		Answer<std::shared_ptr<tensorpipe::Pipe>> accepted;
		listener->accept(accepted);
		pipes.push_back(accepted.get());
		served.push_back(std::async(std::launch::async, [pipe = pipes.back()] {
			for (size_t count = 0; count < std::size(LENGTHS); count++) {
				Content content = receive(*pipe);
				send(*pipe, content).get();
			}
			// The caller closes its end when it has everything; the server may close
			// only afterwards.
			Answer<tensorpipe::Descriptor> end;
			pipe->readDescriptor(end);
			try {
				end.get();
			} catch (const std::exception &) {
				return;
			}
			throw std::runtime_error("one message more than there are");
		}));
	}
	for (auto &done : served)
		done.get();
	library->join();
}

Content content(int pipe, size_t round)
{
	size_t len = LENGTHS[round];
	Content made{std::to_string(pipe) + "/" + std::to_string(round), Bytes(len), Bytes(LENGTHS[std::size(LENGTHS) - 1 - round])};
	for (size_t i = 0; i < made.payload.size(); i++)
		made.payload[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + static_cast<size_t>(pipe) * 31 + round);
	for (size_t i = 0; i < made.tensor.size(); i++)
		made.tensor[i] = static_cast<std::uint8_t>(i * 11 + i / 241 + static_cast<size_t>(pipe) * 37 + round);
	return made;
}

long differences(const Bytes &one, const Bytes &other)
{
	if (one.size() != other.size())
		return 1;
	long wrong = 0;
	for (size_t i = 0; i < one.size(); i++)
		wrong += one[i] != other[i];
	return wrong;
}

long call(const std::string &folder)
{
	std::string url;
	while (!std::getline(std::ifstream(folder + "/url"), url))
		usleep(10000);
	auto library = context();
	std::vector<std::future<long>> called;
	for (int i = 0; i < PIPES; i++) {
		called.push_back(std::async(std::launch::async, [i, pipe = library->connect(url)] {
			std::vector<Content> out;
			for (size_t round = 0; round < std::size(LENGTHS); round++)
				out.push_back(content(i, round));
			// All at once; the other side sends back while more comes.
			std::vector<Answer<int>> sent;
			for (Content &each : out)
				sent.push_back(send(*pipe, each));
			long wrong = 0;
			for (size_t round = 0; round < std::size(LENGTHS); round++) {
				Content back = receive(*pipe);
				wrong += back.words != out[round].words;
				wrong += differences(back.payload, out[round].payload) + differences(back.tensor, out[round].tensor);
			}
			for (auto &each : sent)
				each.get();
			pipe->close();
			return wrong;
		}));
	}
	long wrong = 0;
	for (auto &done : called)
		wrong += done.get();
	library->join();
	return wrong;
}

} // namespace

int main(int argc, char **argv)
{
	const std::string role = argc == 3 ? argv[1] : "";
	try {
		if (role == "serve") {
			serve(argv[2]);
			return 0;
		}
		if (role == "call") {
			const long wrong = call(argv[2]);
			std::printf("%d pipes, %ld wrong\n", PIPES, wrong);
			return wrong != 0;
		}
	} catch (const std::exception &failure) {
		std::fprintf(stderr, "%s\n", failure.what());
		return 1;
	}
	std::fprintf(stderr, "usage: %s serve|call FOLDER\n", argv[0]);
	return 2;
}
