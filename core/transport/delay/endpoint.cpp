#include "transport/delay/endpoint.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <deque>
#include <optional>
#include <utility>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "probe/payload.hpp"
#include "transport/delay/adapter.hpp"

namespace weft::transport {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr size_t kPage = 4096;
constexpr double kDeviceHz = 1e9;
constexpr size_t kMostGiven = 1024;

size_t stride_of(const Config& config, uint32_t bytes) {
  return (size_t{config.offset} + bytes + kPage - 1) / kPage * kPage;
}

void require(bool fits, const char* what, const std::string& problem, const char* remedy) {
  if (!fits) throw Error(std::string("delay ") + what, problem, remedy);
}

void check(const Config& config) {
  const DelayConfig& delay = config.delay;
  require(config.send_bytes <= kMaxBytes && config.receive_bytes <= kMaxBytes, "size",
          std::to_string(std::max(config.send_bytes, config.receive_bytes)) + " B is over 1 GiB",
          "use smaller messages");
  require(config.depth > 0 && config.receive_depth > 0, "depth", "0 messages", "use 1 or more");
  require(config.endpoint.empty() || config.endpoint == "rc" || config.endpoint == "ud", "endpoint",
          "'" + config.endpoint + "' is unknown", "use rc (reliable, in order) or ud (datagrams)");
  require(delay.loss >= 0 && delay.loss <= 1, "loss",
          std::to_string(delay.loss) + " is no probability", "use 0 to 1");
  require(delay.loss == 0 || config.endpoint != "rc", "loss", "rc endpoints lose nothing",
          "use endpoint ud");
  require(delay.stall_ns >= 0 && delay.stall_every_ns >= 0 &&
              (delay.stall_ns == 0 || delay.stall_ns < delay.stall_every_ns),
          "stall_ns",
          std::to_string(delay.stall_ns) + " ns every " + std::to_string(delay.stall_every_ns) +
              " ns leaves no time to move",
          "use a stall shorter than its period");
  require(delay.peer != "transfer" || config.receive_bytes >= 8, "receive_bytes",
          std::to_string(config.receive_bytes) + " B do not hold a transfer's acknowledgement",
          "use 8 or more");
  require(delay.adapter_ns >= 0 && delay.receive_ns >= 0 && delay.rate_gbps >= 0, "adapter_ns",
          "adapter_ns, receive_ns or rate_gbps is negative", "use 0 or more");
  require(delay.peer == "echo" || delay.peer == "sink" || delay.peer == "duplex" ||
              delay.peer == "transfer",
          "peer", "'" + delay.peer + "' is unknown", "use echo, sink, duplex or transfer");
}

// Something that can be polled from `due` on. Equal times keep the order of posting.
struct Arrival {
  uint64_t due = 0;  // reading of the counter
  uint64_t order = 0;
  Completion completion;

  bool operator>(const Arrival& other) const {
    return due != other.due ? due > other.due : order > other.order;
  }
};

// A work whose way is not computed yet.
struct Posted {
  Work work;
  int64_t post = 0, leaves = 0;
  uint64_t since = 0;  // ticks from the program's last call
};

// A completion that the program was given. Readings of the counter.
struct HandOver {
  uint64_t due = 0, at = 0;
  uint64_t next_call = 0;  // of the program after it; 0: none yet
};

struct Finished {
  uint64_t due = 0;
  uint32_t works = 0;  // this one, and the unsignaled ones before it
  Completion completion;
};

// Receive slots: as many as are in flight or with the program. A message is copied into one when it
// is posted, so that poll only hands it over.
class Slots {
 public:
  Slots(const Config& config)
      : stride_(stride_of(config, config.receive_bytes)), offset_(config.offset), config_(config) {
    grow(config.receive_depth);
  }

  uint64_t take() {
    if (free_.empty()) grow(static_cast<uint32_t>(at_.size()));
    const uint64_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give(uint64_t slot) { free_.push_back(slot); }
  std::byte* at(uint64_t slot) const { return at_[slot] + offset_; }
  size_t size() const { return at_.size(); }
  const std::string& pages() const { return memory_.front().pages(); }

 private:
  void grow(uint32_t slots) {
    memory_.emplace_back(stride_ * slots, config_.pages, config_.node);
    at_.reserve(at_.size() + slots);
    free_.reserve(at_.size() + slots);
    for (uint32_t i = 0; i < slots; ++i) {
      free_.push_back(at_.size());
      at_.push_back(memory_.back().data() + stride_ * i);
    }
  }

  size_t stride_;
  uint32_t offset_;
  Config config_;
  std::vector<Buffer> memory_;
  std::vector<std::byte*> at_;
  std::vector<uint64_t> free_;
};

class DelayEndpoint final : public Endpoint {
 public:
  explicit DelayEndpoint(const Config& config);

  std::string address() override { return address_; }
  void connect(const std::string& peer, int) override { loopback_ = peer == address_; }

  uint32_t post(std::span<const Work> works) override;
  uint32_t poll(std::span<Completion> out) override;
  uint32_t wait(std::span<Completion> out, int64_t timeout_ns) override;
  void release(uint64_t receive_slot) override;

  std::byte* send_slot(uint32_t slot) override {
    return send_.data() + (config_.one_buffer ? 0 : stride_ * slot) + config_.offset;
  }
  const std::byte* receive_slot(uint64_t slot) override { return slots_.at(slot); }
  std::span<std::byte> window() override { return {window_.data(), config_.remote_bytes}; }
  std::map<std::string, std::string> describe() override;
  bool is_reliable() const override { return reliable_; }

  const DelayTruth& truth() {
    settle();
    return truth_;
  }

 private:
  enum class Far : uint8_t { echo, sink, duplex, transfer };

  void check(const Work& work) const;
  void settle();
  void end_absence(uint64_t now);
  void record_hand_overs();
  void go_round(const Work& work, int64_t post, int64_t leaves);
  void go_out(const Work& work, int64_t post, int64_t leaves);
  void answer(const Work& work, int64_t post, int64_t at_far);
  void touch_window(const Work& work);
  void complete(const Work& work, int64_t post, int64_t at_adapter);
  int64_t receive(const Work& work, int64_t at_adapter);
  void send_from_far(int64_t ready);
  void acknowledge(int64_t at_adapter);
  int64_t deliver(Completion completion, int64_t at_adapter);
  std::byte* window_at(const Work& work) { return window_.data() + work.remote_offset; }
  void keep(DelayTimes& times, int64_t ps) const;
  bool loses() { return config_.delay.loss > 0 && loss_rng_.uniform() <= config_.delay.loss; }
  // Reliable connections deliver in order: never before the one before.
  int64_t in_order(int64_t& last, int64_t time) const {
    if (!reliable_) return time;
    return last = std::max(last, time);
  }
  uint64_t device_ticks(int64_t ps) const {
    return config_.device_timestamps ? static_cast<uint64_t>(ps / 1000) + 1 : 0;
  }
  uint64_t next_due() const;

  const Config config_;
  const Far far_;
  const bool reliable_;
  const std::shared_ptr<DelayAdapter> adapter_;
  const uint64_t number_;
  const std::string address_;
  const DelayWire wire_;
  const DelayDistribution wire_time_, loopback_time_, host_complete_, remote_host_, remote_memory_;
  const int64_t receive_ps_;
  Rng out_rng_, back_rng_, echo_rng_, host_rng_, remote_rng_, loss_rng_;

  bool loopback_ = false;
  size_t stride_;
  Buffer send_, window_;
  Slots slots_;
  std::vector<Posted> posted_;
  std::deque<Finished> finished_;                          // in the order of their times
  std::vector<Arrival> arrivals_;                          // a heap, the earliest on top
  std::vector<HandOver> finished_given_, arrivals_given_;  // not recorded yet
  uint32_t outstanding_ = 0, unsignaled_ = 0, held_ = 0, far_unreleased_ = 0;
  uint64_t last_call_ = 0;  // of the program; reading of the counter
  bool absent_ = false;     // given something, not called since
  uint64_t pushed_ = 0, far_sent_ = 0, far_received_ = 0;
  int64_t last_out_ = 0, last_ack_ = 0, last_back_ = 0;  // on the wire
  int64_t last_sent_ = 0, last_received_ = 0;            // with the program
  int64_t far_free_ = 0;
  DelayTruth truth_;
};

DelayEndpoint::DelayEndpoint(const Config& config)
    : config_((transport::check(config), config)),
      far_(config.delay.peer == "echo"     ? Far::echo
           : config.delay.peer == "sink"   ? Far::sink
           : config.delay.peer == "duplex" ? Far::duplex
                                           : Far::transfer),
      reliable_(config.endpoint != "ud" && config.delay.loss == 0),
      adapter_(DelayAdapter::shared(config.device, config.delay)),
      number_(adapter_->join()),
      address_("delay:" + config.device + ":" + std::to_string(number_)),
      wire_(config.delay.stall_ns > 0 ? config.delay.stall_every_ns * 1000 : 0,
            config.delay.stall_ns * 1000),
      wire_time_(DelayDistribution::parse("delay wire", config.delay.wire)),
      loopback_time_(DelayDistribution::parse("delay loopback", config.delay.loopback)),
      host_complete_(DelayDistribution::parse("delay host_complete", config.delay.host_complete)),
      remote_host_(DelayDistribution::parse("delay remote_host", config.delay.remote_host)),
      remote_memory_(DelayDistribution::parse("delay remote_memory", config.delay.remote_memory)),
      receive_ps_(config.delay.receive_ns * 1000),
      stride_(stride_of(config, config.send_bytes)),
      send_(stride_ * (config.one_buffer ? 1 : config.depth), config.pages, config.node),
      window_(config.remote_bytes, config.pages, config.node),
      slots_(config) {
  uint64_t stream = 1 + 8 * number_;
  for (Rng* rng : {&out_rng_, &back_rng_, &echo_rng_, &host_rng_, &remote_rng_, &loss_rng_})
    *rng = stream_of(config.delay.seed, stream++);
  posted_.reserve(config.depth);
  finished_given_.reserve(2 * kMostGiven);
  arrivals_given_.reserve(2 * kMostGiven);
  arrivals_.reserve(size_t{2} * (config.depth + config.receive_depth));
  for (DelayTimes* times :
       {&truth_.wire_rtt, &truth_.completion, &truth_.echo, &truth_.completion_late,
        &truth_.completion_away, &truth_.arrival_late, &truth_.arrival_away, &truth_.turnaround})
    times->samples.reserve(config.delay.samples);
}

// ---- Posting ------------------------------------------------------------------------------

uint32_t DelayEndpoint::post(std::span<const Work> works) {
  const uint64_t at = ticks();
  const int64_t now = adapter_->ps_at(at);
  const uint64_t since = last_call_ > 0 ? at - last_call_ : 0;
  if (absent_) end_absence(at);
  last_call_ = at;
  uint32_t accepted = 0;
  for (const Work& work : works) {
    if (outstanding_ == config_.depth) break;
    check(work);
    posted_.push_back({work, now, adapter_->leaves(now, work.bytes), since});
    ++outstanding_;
    ++accepted;
  }
  return accepted;
}

void DelayEndpoint::check(const Work& work) const {
  if (work.slot >= config_.depth || work.bytes > config_.send_bytes)
    throw Error("delay post",
                std::to_string(work.bytes) + " B from slot " + std::to_string(work.slot) +
                    " do not fit the endpoint",
                "open it with a larger send_bytes or depth");
  if (!is_one_sided(work.op) && (work.op != Op::write_imm || config_.remote_bytes == 0)) return;
  if (work.remote_offset + work.bytes > config_.remote_bytes)
    throw Error("delay post",
                "access to byte " + std::to_string(work.remote_offset + work.bytes) +
                    " of a window of " + std::to_string(config_.remote_bytes) + " B",
                "open the endpoint with a larger remote_bytes");
}

// Works out what becomes of the messages posted since the last poll. Not done by post, which takes
// no longer than ringing a doorbell: the second message of a pair would leave later by that.
void DelayEndpoint::settle() {
  for (const auto& [work, post, leaves, since] : posted_) {
    ++truth_.messages;
    keep(truth_.turnaround, Clock::shared().ps(since));
    touch_window(work);
    loopback_ ? go_round(work, post, leaves) : go_out(work, post, leaves);
    if (far_ == Far::duplex && !loopback_) send_from_far(leaves);
  }
  posted_.clear();
  record_hand_overs();
}

// The program calls again: it was away from what it was given last until now.
void DelayEndpoint::end_absence(uint64_t now) {
  for (auto* given : {&finished_given_, &arrivals_given_})
    for (auto last = given->rbegin(); last != given->rend() && last->next_call == 0; ++last)
      last->next_call = now;
  absent_ = false;
}

void DelayEndpoint::record_hand_overs() {
  const Clock& clock = Clock::shared();
  const auto record = [&](std::vector<HandOver>& given, DelayTimes& late, DelayTimes& away) {
    for (const HandOver& one : given) {
      keep(late, clock.ps(one.at - one.due));
      keep(away, one.next_call > 0 ? clock.ps(one.next_call - one.at) : 0);
    }
    given.clear();
  };
  record(finished_given_, truth_.completion_late, truth_.completion_away);
  record(arrivals_given_, truth_.arrival_late, truth_.arrival_away);
}

void DelayEndpoint::go_round(const Work& work, int64_t post, int64_t leaves) {
  const int64_t back = leaves + loopback_time_.draw(out_rng_) + 2 * receive_ps_;
  complete(work, post, back);
  if (!is_one_sided(work.op)) receive(work, back);
}

void DelayEndpoint::go_out(const Work& work, int64_t post, int64_t leaves) {
  const int64_t arrives = in_order(last_out_, wire_.arrival(leaves, wire_time_.draw(out_rng_)));
  const int64_t at_far = arrives + receive_ps_;
  if (reliable_) {
    const int64_t memory =
        is_one_sided(work.op) || work.op == Op::write_imm ? remote_memory_.draw(remote_rng_) : 0;
    const int64_t ack = at_far + memory;
    const int64_t back = in_order(last_ack_, wire_.arrival(ack, wire_time_.draw(back_rng_)));
    keep(truth_.wire_rtt, (arrives - leaves) + (back - ack));
    complete(work, post, back + receive_ps_);
  } else {
    complete(work, post, leaves);
    if (loses()) {
      ++truth_.lost;
      return;
    }
  }
  if (!is_one_sided(work.op)) answer(work, post, at_far);
}

// What the far program does with a message.
void DelayEndpoint::answer(const Work& work, int64_t post, int64_t at_far) {
  if (far_ == Far::sink || far_ == Far::duplex) return;
  const int64_t answered = at_far + remote_host_.draw(remote_rng_);
  const int64_t back = in_order(last_back_, wire_.arrival(answered, wire_time_.draw(echo_rng_)));
  if (!reliable_ && loses()) {
    ++truth_.lost;
    return;
  }
  if (far_ == Far::transfer) {
    acknowledge(back + receive_ps_);
  } else {
    keep(truth_.echo, receive(work, back + receive_ps_) - post);
  }
}

// The far program of "duplex" sends a message for each of ours, as receive slots are free.
void DelayEndpoint::send_from_far(int64_t ready) {
  if (far_sent_ == truth_.messages || far_unreleased_ == config_.receive_depth) return;
  ++far_unreleased_;
  far_free_ = std::max(far_free_, ready) + adapter_->busy_ps(config_.receive_bytes);
  const int64_t back = in_order(last_back_, wire_.arrival(far_free_, wire_time_.draw(echo_rng_)));
  Completion completion{.kind = Completion::received, .bytes = config_.receive_bytes};
  completion.id = slots_.take();
  probe::fill(slots_.at(completion.id), completion.bytes, far_sent_++);
  deliver(completion, back + receive_ps_);
}

void DelayEndpoint::touch_window(const Work& work) {
  std::byte* const local = send_slot(work.slot);
  switch (work.op) {
    case Op::write_imm:
      if (config_.remote_bytes == 0) return;
      [[fallthrough]];
    case Op::write:
      std::memcpy(window_at(work), local, work.bytes);
      return;
    case Op::read:
      std::memcpy(local, window_at(work), work.bytes);
      return;
    case Op::fetch_add:
    case Op::compare_swap: {
      uint64_t old;
      std::memcpy(&old, window_at(work), sizeof old);
      std::memcpy(local, &old, sizeof old);
      if (work.op == Op::compare_swap && old != work.compare) return;
      const uint64_t value = work.op == Op::fetch_add ? old + work.operand : work.operand;
      std::memcpy(window_at(work), &value, sizeof value);
      return;
    }
    default:
      return;
  }
}

// ---- Completing ---------------------------------------------------------------------------

void DelayEndpoint::complete(const Work& work, int64_t post, int64_t at_adapter) {
  // Completions of one queue are written in order, also those of datagrams.
  last_sent_ = std::max(last_sent_, at_adapter + host_complete_.draw(host_rng_));
  keep(truth_.completion, last_sent_ - post);
  if (!work.signaled) {
    ++unsignaled_;
    return;
  }
  Completion completion{.kind = Completion::sent};
  completion.id = work.id;
  completion.device_ticks = device_ticks(at_adapter);
  finished_.push_back({adapter_->ticks_at(last_sent_), unsignaled_ + 1, completion});
  unsignaled_ = 0;
}

// The same bytes come to our program; returns when it can see them.
int64_t DelayEndpoint::receive(const Work& work, int64_t at_adapter) {
  Completion completion{.kind = Completion::received, .bytes = work.bytes};
  completion.id = slots_.take();
  completion.has_immediate = work.op == Op::write_imm;
  completion.immediate = work.immediate;
  const uint32_t fits = std::min(work.bytes, config_.receive_bytes);
  std::memcpy(slots_.at(completion.id), send_slot(work.slot), fits);
  return deliver(completion, at_adapter);
}

// As transfer_receive does: how many messages have come.
void DelayEndpoint::acknowledge(int64_t at_adapter) {
  ++far_received_;
  Completion completion{.kind = Completion::received, .bytes = sizeof far_received_};
  completion.id = slots_.take();
  std::memcpy(slots_.at(completion.id), &far_received_, sizeof far_received_);
  deliver(completion, at_adapter);
}

int64_t DelayEndpoint::deliver(Completion completion, int64_t at_adapter) {
  completion.device_ticks = device_ticks(at_adapter);
  const int64_t visible = in_order(last_received_, at_adapter + host_complete_.draw(host_rng_));
  arrivals_.push_back({adapter_->ticks_at(visible), pushed_++, completion});
  std::push_heap(arrivals_.begin(), arrivals_.end(), std::greater<>{});
  return visible;
}

void DelayEndpoint::keep(DelayTimes& times, int64_t ps) const {
  times.histogram.record(ps);
  if (times.samples.size() < config_.delay.samples) times.samples.push_back(ps);
}

uint32_t DelayEndpoint::poll(std::span<Completion> out) {
  if (absent_) end_absence(ticks());
  if (!posted_.empty() || finished_given_.size() + arrivals_given_.size() > kMostGiven) settle();
  uint32_t count = 0;
  const uint64_t now = ticks();
  while (count < out.size() && !finished_.empty() && finished_.front().due <= now) {
    outstanding_ -= finished_.front().works;
    out[count++] = finished_.front().completion;
    finished_given_.push_back({.due = finished_.front().due, .at = now});
    finished_.pop_front();
  }
  while (count < out.size() && !arrivals_.empty() && arrivals_.front().due <= now) {
    // No receive is posted: a reliable sender tries again, a datagram is dropped.
    const bool room = held_ < config_.receive_depth;
    if (!room && reliable_) break;
    std::pop_heap(arrivals_.begin(), arrivals_.end(), std::greater<>{});
    const Completion completion = arrivals_.back().completion;
    const uint64_t due = arrivals_.back().due;
    arrivals_.pop_back();
    if (!room) {
      ++truth_.lost;
      slots_.give(completion.id);
      continue;
    }
    ++held_;
    out[count++] = completion;
    arrivals_given_.push_back({.due = due, .at = now});
  }
  last_call_ = now;
  absent_ = count > 0;
  return count;
}

uint64_t DelayEndpoint::next_due() const {
  uint64_t due = ~uint64_t{0};
  if (!finished_.empty()) due = finished_.front().due;
  if (!arrivals_.empty() && held_ < config_.receive_depth)
    due = std::min(due, arrivals_.front().due);
  return due;
}

uint32_t DelayEndpoint::wait(std::span<Completion> out, int64_t timeout_ns) {
  const Clock& clock = Clock::shared();
  const uint64_t end = ticks() + clock.ticks_of_ns(timeout_ns);
  for (;;) {
    if (const uint32_t count = poll(out); count > 0) return count;
    const uint64_t now = ticks();
    if (now >= end) return 0;
    const uint64_t until = std::min(end, next_due());
    if (config_.events && until > now) {
      const int64_t ns = clock.ps(until - now) / 1000;
      const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
      nanosleep(&time, nullptr);
    } else {
      pause();
    }
  }
}

void DelayEndpoint::release(uint64_t receive_slot) {
  slots_.give(receive_slot);
  --held_;
  if (far_ != Far::duplex || loopback_) return;
  --far_unreleased_;
  send_from_far(wire_.arrival(adapter_->now_ps(), wire_time_.draw(out_rng_)));
}

std::map<std::string, std::string> DelayEndpoint::describe() {
  const DelayConfig& delay = config_.delay;
  std::map<std::string, std::string> all{
      {"transport", "delay"},
      {"device", config_.device},
      {"endpoint", reliable_ ? "rc" : "ud"},
      {"peer", loopback_ ? "loopback" : delay.peer},
      {"wire", delay.wire},
      {"loopback", delay.loopback},
      {"host_post", delay.host_post},
      {"host_complete", delay.host_complete},
      {"remote_host", delay.remote_host},
      {"remote_memory", delay.remote_memory},
      {"adapter_ns", std::to_string(delay.adapter_ns)},
      {"receive_ns", std::to_string(delay.receive_ns)},
      {"rate_gbps", std::to_string(delay.rate_gbps)},
      {"loss", std::to_string(delay.loss)},
      {"stall_every_ns", std::to_string(delay.stall_every_ns)},
      {"stall_ns", std::to_string(delay.stall_ns)},
      {"seed", std::to_string(delay.seed)},
      {"pages", send_.pages()},
      {"depth", std::to_string(config_.depth)},
      {"receive_depth", std::to_string(config_.receive_depth)},
  };
  if (config_.device_timestamps) all["device_hz"] = std::to_string(kDeviceHz);
  return all;
}

}  // namespace

const DelayTruth* delay_truth(Endpoint& endpoint) {
  auto* delay = dynamic_cast<DelayEndpoint*>(&endpoint);
  return delay == nullptr ? nullptr : &delay->truth();
}

std::unique_ptr<Endpoint> open_delay(const Config& config) {
  return std::make_unique<DelayEndpoint>(config);
}

std::vector<Availability> delay_availability() {
  Availability delay;
  delay.transport = "delay";
  delay.available = true;
  delay.endpoints = {"rc", "ud"};
  for (const Op op : {Op::send, Op::tagged, Op::inject, Op::write, Op::write_imm, Op::read,
                      Op::fetch_add, Op::compare_swap})
    delay.operations.push_back(name_of(op));
  delay.max_bytes = kMaxBytes;
  delay.facts["about"] = "injects known delays within this process, to test the estimators";
  return {delay};
}

}  // namespace weft::transport
