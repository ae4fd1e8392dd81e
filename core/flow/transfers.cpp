#include "flow/transfers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace weft::flow {

namespace {

constexpr uint32_t kBranches = 4;

Time end_of(Time now, double left, double rate) {
  if (left <= 0) return now;
  const double wait = std::ceil(left / rate);
  // Also for a rate of 0 and for endless transfers.
  return wait < static_cast<double>(kNever - now) ? now + static_cast<Time>(wait) : kNever;
}

// At most the last time there is.
Time later_by(Time now, Time wait) {
  return wait < kNever - now ? now + wait : kNever - 1;
}

}  // namespace

uint32_t Transfers::add_port(double bytes_per_ps, std::span<const QueueSpec> queues) {
  const uint32_t port = rates_.add_port(bytes_per_ps, queues);
  carried_.resize(carried_.size() + queues.size());
  return port;
}

void Transfers::set_step(Time step) {
  if (step < 0) throw std::invalid_argument("a step must be 0 or more");
  step_ = step;
}

uint32_t Transfers::start(std::span<const Hop> path, double bytes, double weight, double cap) {
  const uint32_t id = rates_.add_flow(path, weight, cap);
  if (transfers_.size() <= id) transfers_.resize(id + 1);
  Transfer& transfer = transfers_[id];
  transfer = {};
  transfer.endless = bytes == kUnlimited;
  transfer.active = true;
  transfer.size = transfer.left = transfer.endless ? 0 : bytes;
  transfer.rate = 0;
  transfer.changed = now_;
  transfer.end = kNever;
  transfer.place = kOut;
  if (bytes <= 0) place(id, now_);
  change();
  return id;
}

void Transfers::stop(uint32_t id) {
  take_out(id);
  remove(id);
}

void Transfers::remove(uint32_t id) {
  count(id);
  transfers_[id].active = false;
  rates_.remove_flow(id);
  change();
}

// What was sent until now, to the queues it passed.
void Transfers::count(uint32_t id) {
  const double bytes = uncounted(id);
  rates_.for_each_queue(id, [&](uint32_t queue) { carried_[queue] += bytes; });
  transfers_[id].counted += bytes;
}

void Transfers::set_queues(uint32_t port, std::span<const QueueSpec> queues) {
  rates_.set_queues(port, queues);
  change();
}

void Transfers::set_queue(uint32_t id, uint32_t hop, uint32_t queue) {
  count(id);
  rates_.set_queue(id, hop, queue);
  change();
}

void Transfers::serve_by(Order order) {
  order_ = order;
  change();
}

void Transfers::serve_by_bytes_left(std::vector<double> cutoffs) {
  if (!std::is_sorted(cutoffs.begin(), cutoffs.end())) {
    throw std::invalid_argument("cut-offs must ascend");
  }
  cutoffs_ = std::move(cutoffs);
  serve_by(Order::kBytesLeft);
}

void Transfers::set_priority(uint32_t id, uint32_t priority) {
  transfers_[id].priority = priority;
  change();
}

void Transfers::change() {
  if (!settled_) return;
  settled_ = false;
  due_ = step_ > 0 && now_ % step_ ? later_by(now_, step_ - now_ % step_) : now_;
}

void Transfers::set_rate(uint32_t id, double rate) {
  Transfer& transfer = transfers_[id];
  transfer.left -= transfer.rate * static_cast<double>(now_ - transfer.changed);
  transfer.changed = now_;
  transfer.rate = rate;
}

void Transfers::settle() {
  if (settled_ || now_ < due_) return;
  settled_ = true;
  if (order_ != Order::kQueues) return settle_in_order();
  const bool refines = step_ > 0 && rates_.has_many_flows();
  const std::vector<uint32_t>& changes = refines ? rates_.refine() : rates_.solve();
  const auto find_end = [&](uint32_t id) {
    const Transfer& transfer = transfers_[id];
    return transfer.endless ? kNever : end_of(now_, transfer.left, transfer.rate);
  };
  if (was_in_order_ || changes.size() > heap_.size() / 8) {
    for (uint32_t id = 0; id < transfers_.size() && was_in_order_; ++id) {
      if (transfers_[id].active) set_rate(id, rates_.rate(id));
    }
    for (const uint32_t id : changes) set_rate(id, rates_.rate(id));
    was_in_order_ = false;
    rebuild_heap();
  } else {
    for (const uint32_t id : changes) {
      set_rate(id, rates_.rate(id));
      place(id, find_end(id));
    }
  }
  if (refines && !rates_.is_refined()) {  // goes on at the next step
    settled_ = false;
    due_ = later_by(now_, step_);
  }
}

void Transfers::settle_in_order() {
  was_in_order_ = true;
  ranking_.clear();
  for (uint32_t id = 0; id < transfers_.size(); ++id) {
    const Transfer& transfer = transfers_[id];
    if (!transfer.active) continue;
    const double left = transfer.endless ? kUnlimited : transfer.size - sent(id);
    const double key = order_ == Order::kPriority ? transfer.priority
                       : cutoffs_.empty()         ? left
                                                  : find_level(left);
    ranking_.push_back({key, id});
  }
  std::sort(ranking_.begin(), ranking_.end());
  in_order_.clear();
  group_ends_.clear();
  for (size_t i = 0; i < ranking_.size(); ++i) {
    in_order_.push_back(ranking_[i].transfer);
    if (i + 1 == ranking_.size() || ranking_[i].key != ranking_[i + 1].key) {
      group_ends_.push_back(static_cast<uint32_t>(i) + 1);
    }
  }
  const std::vector<double>& rates = strict_order_.solve(in_order_, group_ends_);
  for (const uint32_t id : in_order_) set_rate(id, rates[id]);
  rebuild_heap();
}

uint32_t Transfers::find_level(double left) const {
  return static_cast<uint32_t>(std::upper_bound(cutoffs_.begin(), cutoffs_.end(), left) -
                               cutoffs_.begin());
}

Time Transfers::next_end() {
  settle();
  const Time end = heap_.empty() ? kNever : transfers_[heap_[0]].end;
  return settled_ ? end : std::min(end, due_);
}

const std::vector<uint32_t>& Transfers::advance(Time time) {
  settle();
  done_.clear();
  now_ = time;
  while (!heap_.empty() && transfers_[heap_[0]].end <= now_) {
    done_.push_back(heap_[0]);
    take_out(heap_[0]);
  }
  for (const uint32_t id : done_) {
    transfers_[id].left = 0;
    transfers_[id].rate = 0;
    remove(id);
  }
  return done_;
}

double Transfers::rate(uint32_t transfer) {
  settle();
  return transfers_[transfer].rate;
}

double Transfers::sent(uint32_t id) const {
  const Transfer& transfer = transfers_[id];
  const double since = transfer.rate * static_cast<double>(now_ - transfer.changed);
  const double sent = transfer.size - transfer.left + since;
  return transfer.endless ? sent : std::min(transfer.size, sent);
}

double Transfers::carried(uint32_t port, uint32_t queue) const {
  return carried_[rates_.queue_id(port, queue)];
}

// ---- The heap of ends: four branches, each transfer knows its place ---------------------------

bool Transfers::before(uint32_t a, uint32_t b) const {
  return transfers_[a].end != transfers_[b].end ? transfers_[a].end < transfers_[b].end : a < b;
}

void Transfers::put(uint32_t place, uint32_t transfer) {
  heap_[place] = transfer;
  transfers_[transfer].place = place;
}

void Transfers::sift_up(uint32_t place, uint32_t transfer) {
  while (place > 0) {
    const uint32_t parent = (place - 1) / kBranches;
    if (!before(transfer, heap_[parent])) break;
    put(place, heap_[parent]);
    place = parent;
  }
  put(place, transfer);
}

void Transfers::sift_down(uint32_t place, uint32_t transfer) {
  for (;;) {
    const uint32_t first = place * kBranches + 1;
    if (first >= heap_.size()) break;
    const auto last = std::min<uint32_t>(first + kBranches, static_cast<uint32_t>(heap_.size()));
    uint32_t least = first;
    for (uint32_t child = first + 1; child < last; ++child) {
      if (before(heap_[child], heap_[least])) least = child;
    }
    if (!before(heap_[least], transfer)) break;
    put(place, heap_[least]);
    place = least;
  }
  put(place, transfer);
}

// All ends again, for the rates there are.
void Transfers::rebuild_heap() {
  heap_.clear();
  for (uint32_t id = 0; id < transfers_.size(); ++id) {
    Transfer& transfer = transfers_[id];
    if (!transfer.active) continue;
    // Of a rate that did not change, the end stays as it was rounded.
    if (transfer.changed == now_) {
      transfer.end = transfer.endless ? kNever : end_of(now_, transfer.left, transfer.rate);
    }
    transfer.place = kOut;
    if (transfer.end == kNever) continue;
    transfer.place = static_cast<uint32_t>(heap_.size());
    heap_.push_back(id);
  }
  for (size_t place = heap_.size() / kBranches + 1; place-- > 0;) {
    if (place < heap_.size()) sift_down(static_cast<uint32_t>(place), heap_[place]);
  }
}

void Transfers::place(uint32_t id, Time end) {
  Transfer& transfer = transfers_[id];
  if (end == kNever) return take_out(id);
  const bool is_new = transfer.place == kOut;
  const bool earlier = is_new || end < transfer.end;
  transfer.end = end;
  if (is_new) {
    heap_.push_back(id);
    transfer.place = static_cast<uint32_t>(heap_.size()) - 1;
  }
  if (earlier) {
    sift_up(transfer.place, id);
  } else {
    sift_down(transfer.place, id);
  }
}

void Transfers::take_out(uint32_t id) {
  const uint32_t place = transfers_[id].place;
  transfers_[id].end = kNever;
  transfers_[id].place = kOut;
  if (place == kOut) return;
  const uint32_t last = heap_.back();
  heap_.pop_back();
  if (last == id) return;
  if (place > 0 && before(last, heap_[(place - 1) / kBranches])) {
    sift_up(place, last);
  } else {
    sift_down(place, last);
  }
}

}  // namespace weft::flow
