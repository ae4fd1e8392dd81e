// What went wrong, in words: errno values and completion statuses of verbs.
#pragma once

#include "transport/verbs/library.hpp"

#ifdef WEFT_HAVE_VERBS
namespace weft::transport::verbs {

// A failed call: `what` ("create a completion queue") and the errno it gave.
Error failed_call(const std::string& where, const std::string& what, int code);
// A failed registration: memlock is the usual reason.
Error failed_registration(const std::string& where, size_t bytes, int code);
// A work that completed with an error.
Error failed_work(const std::string& where, uint32_t qp, bool receive, ibv_wc_status status,
                  uint32_t vendor);
// An asynchronous event that ends the run.
Error failed_device(const std::string& where, ibv_event_type event);
// A request above a limit of the device.
Error above_limit(const std::string& where, const std::string& what, uint64_t value, uint64_t limit,
                  const std::string& remedy);

}  // namespace weft::transport::verbs
#endif
