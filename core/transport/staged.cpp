#include "transport/staged.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/cuda.hpp"
#include "base/error.hpp"

namespace weft::transport {

namespace {

constexpr uint32_t kHead = 8;  // a sequence number, or an acknowledgement

// A message in the GPU, and what the loops see of it.
struct Slot {
  cuda::Memory gpu;
  std::vector<std::byte> view;
};

class StagedEndpoint final : public Endpoint {
 public:
  StagedEndpoint(std::unique_ptr<Endpoint> transport, const Config& config, std::string reason)
      : config_(config),
        reason_(std::move(reason)),
        gpu_(std::make_shared<cuda::Device>(cuda::device_number(config.memory))),
        transport_(std::move(transport)) {
    for (uint32_t i = 0; i < (config.one_buffer ? 1 : config.depth); ++i)
      sends_.push_back(make_slot(config.send_bytes));
    for (uint32_t i = 0; i < config.receive_depth; ++i)
      receives_.push_back(make_slot(config.receive_bytes));
  }

  std::string address() override { return transport_->address(); }
  void connect(const std::string& peer, int timeout_ms) override {
    transport_->connect(peer, timeout_ms);
    is_marked_ = transport_->is_marked();
  }
  bool is_reliable() const override { return transport_->is_reliable(); }
  uint64_t device_tick_mask() const override { return transport_->device_tick_mask(); }
  void release(uint64_t slot) override { transport_->release(slot); }
  std::byte* send_slot(uint32_t slot) override { return sent_from(slot).view.data(); }
  const std::byte* receive_slot(uint64_t slot) override { return received_in(slot).view.data(); }

  uint32_t post(std::span<const Work> works) override {
    for (const Work& work : works) stage_out(work);
    return transport_->post(works);
  }
  uint32_t poll(std::span<Completion> out) override { return stage_in(out, transport_->poll(out)); }
  uint32_t wait(std::span<Completion> out, int64_t timeout_ns) override {
    return stage_in(out, transport_->wait(out, timeout_ns));
  }

  std::map<std::string, std::string> describe() override {
    auto facts = transport_->describe();
    facts["memory"] = "cuda:" + std::to_string(gpu_->number()) + " (" + gpu_->name() +
                      "), staged by copy: " + reason_;
    return facts;
  }

 private:
  Slot make_slot(uint32_t bytes) const {
    const size_t room = std::max(bytes, kHead);
    return {cuda::Memory(gpu_, room), std::vector<std::byte>(room)};
  }
  Slot& sent_from(uint32_t slot) { return sends_[config_.one_buffer ? 0 : slot]; }
  // Transports may have more receive slots than were asked for.
  Slot& received_in(uint64_t slot) {
    while (receives_.size() <= slot) receives_.push_back(make_slot(config_.receive_bytes));
    return receives_[slot];
  }

  void stage_out(const Work& work) {
    if (is_one_sided(work.op) || work.op == Op::write_imm)
      throw Error(config_.transport, "one-sided operations cannot be staged through host memory",
                  "leave out --memory, or use an adapter that reaches the GPU's memory");
    Slot& slot = sent_from(work.slot);
    if (work.bytes > slot.view.size()) return;  // the transport says so
    std::byte* data = transport_->send_slot(work.slot);
    if (config_.contents) gpu_->to_gpu(slot.gpu.at(), slot.view.data(), work.bytes);
    gpu_->to_host(data, slot.gpu.at(), work.bytes);
    if (!config_.contents) std::memcpy(data, slot.view.data(), std::min(work.bytes, kHead));
  }

  uint32_t stage_in(std::span<Completion> out, uint32_t count) {
    for (const Completion& completion : out.first(count)) {
      if (completion.kind != Completion::received) continue;
      Slot& slot = received_in(completion.id);
      const std::byte* data = transport_->receive_slot(completion.id);
      gpu_->to_gpu(slot.gpu.at(), data, completion.bytes);
      if (config_.contents)
        gpu_->to_host(slot.view.data(), slot.gpu.at(), completion.bytes);
      else
        std::memcpy(slot.view.data(), data, std::min(completion.bytes, kHead));
    }
    return count;
  }

  Config config_;
  std::string reason_;
  std::shared_ptr<const cuda::Device> gpu_;
  std::vector<Slot> sends_, receives_;
  std::unique_ptr<Endpoint> transport_;
};

}  // namespace

std::unique_ptr<Endpoint> open_staged(std::unique_ptr<Endpoint> transport, const Config& config,
                                      const std::string& reason) {
  if (config.remote_bytes > 0)
    throw Error(config.transport, "one-sided operations cannot be staged through host memory",
                "leave out --memory, or use an adapter that reaches the GPU's memory");
  return std::make_unique<StagedEndpoint>(std::move(transport), config, reason);
}

}  // namespace weft::transport
