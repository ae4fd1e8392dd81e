#include "transport/verbs/errors.hpp"

#ifdef WEFT_HAVE_VERBS
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace weft::transport::verbs {

namespace {

std::string remedy_of(int code) {
  switch (code) {
    case ENODEV:
    case EIO:
      return "the device was removed or reset: see dmesg, and `rdma link` for what is left";
    case ENOMEM:
      return "lower --depth, the message size or the number of QPs, or raise memlock (ulimit -l)";
    case EPERM:
    case EACCES:
      return "access to /dev/infiniband/uverbs* is needed";
    case EINVAL:
      return "the device refuses these values: lower --depth and --inline, see `weft doctor`";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "the peer's GID cannot be reached from ours: see routes, and choose with --gid-index";
    default:
      return "see dmesg";
  }
}

struct Words {
  const char* problem;
  const char* remedy;
};

Words words_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return {"the peer did not answer, retries used up",
              "is the peer alive, its link up, and do GID index and MTU fit both sides?"};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {"the peer had no receive posted", "raise the peer's receive depth"};
    case IBV_WC_LOC_LEN_ERR:
      return {"a message was longer than its receive buffer, or than the device allows",
              "agree on the message size on both sides"};
    case IBV_WC_REM_ACCESS_ERR:
      return {"the peer's memory may not be accessed so", "stay inside the window the peer opened"};
    case IBV_WC_REM_INV_REQ_ERR:
      return {"the peer refused the request as invalid",
              "agree on the message size and the operation on both sides"};
    case IBV_WC_REM_OP_ERR:
      return {"the peer could not carry out the request", "see the peer's error"};
    case IBV_WC_LOC_PROT_ERR:
      return {"our memory is not registered for this", "this is a defect of weft: report it"};
    case IBV_WC_WR_FLUSH_ERR:
      return {"the queue pair was closed by an earlier error or by the device",
              "see the peer's error, and dmesg"};
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR:
      return {"the device failed", "it may have been removed or reset: see dmesg"};
    default:
      return {"the work failed", "see dmesg"};
  }
}

rlim_t memlock() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur;
}

}  // namespace

Error failed_call(const std::string& where, const std::string& what, int code) {
  return Error(where, "cannot " + what + ": " + std::strerror(code), remedy_of(code));
}

Error failed_registration(const std::string& where, size_t bytes, int code) {
  const std::string what = "register " + std::to_string(bytes) + " B of memory";
  const rlim_t limit = memlock();
  // The kernel says EPERM where nothing at all may be locked.
  const bool locked_out = code == ENOMEM || code == EAGAIN || (code == EPERM && limit == 0);
  if (!locked_out || limit == RLIM_INFINITY) return failed_call(where, what, code);
  return Error(where,
               "cannot " + what + ": the memlock limit is " + std::to_string(limit >> 10) + " KiB",
               "raise it (ulimit -l unlimited, or memlock in /etc/security/limits.conf), or "
               "lower --depth or the message size");
}

Error failed_work(const std::string& where, uint32_t qp, bool receive, ibv_wc_status status,
                  uint32_t vendor) {
  const Words words = words_of(status);
  return Error(where,
               "QP " + std::to_string(qp) + ", " + (receive ? "receive" : "send") + ": " +
                   words.problem + " (" + library().wc_status_str(status) + ", vendor code " +
                   std::to_string(vendor) + ")",
               words.remedy);
}

Error failed_device(const std::string& where, ibv_event_type event) {
  const std::string name = library().event_type_str(event);
  switch (event) {
    case IBV_EVENT_DEVICE_FATAL:
      return Error(where, "the device was removed or failed (" + name + ")", remedy_of(ENODEV));
    case IBV_EVENT_PORT_ERR:
      return Error(where, "the port went down (" + name + ")",
                   "see `rdma link` and the cable, and run again when it is ACTIVE");
    default:
      return Error(where, "the device reported: " + name, "see dmesg");
  }
}

Error above_limit(const std::string& where, const std::string& what, uint64_t value, uint64_t limit,
                  const std::string& remedy) {
  return Error(
      where,
      what + " " + std::to_string(value) + " exceeds the device limit " + std::to_string(limit),
      remedy);
}

}  // namespace weft::transport::verbs
#endif
