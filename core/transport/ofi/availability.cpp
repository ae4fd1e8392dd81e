// What libfabric and its providers can do here, as fi_info would tell it.
#include <algorithm>

#include "base/error.hpp"
#include "transport/endpoint.hpp"
#include "transport/ofi/info.hpp"

namespace weft::transport {

#ifdef WEFT_HAVE_OFI

namespace {

// Hardware providers that people look for, listed even when libfabric was built without them.
constexpr std::array kHardware{"verbs", "efa"};

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

std::string text_of(const char* text) {
  return text ? text : "";
}

// One endpoint type's attributes; the first offer is what libfabric would choose.
void add_facts(const fi_info& info, std::map<std::string, std::string>& facts) {
  const OfiLibrary& library = OfiLibrary::get();
  const std::string type = endpoint_name(info.ep_attr->type);
  const auto add = [&](const char* name, const std::string& value) {
    facts.emplace(type + "." + name, value);
  };
  add("provider", text_of(info.fabric_attr->prov_name));
  add("protocol", library.text(&info.ep_attr->protocol, FI_TYPE_PROTOCOL));
  add("caps", library.text(&info.caps, FI_TYPE_CAPS));
  add("mode", library.text(&info.mode, FI_TYPE_MODE));
  add("mr_mode", library.text(&info.domain_attr->mr_mode, FI_TYPE_MR_MODE));
  add("addr_format", library.text(&info.addr_format, FI_TYPE_ADDR_FORMAT));
  add("max_msg_size", std::to_string(info.ep_attr->max_msg_size));
  add("inject_size", std::to_string(info.tx_attr->inject_size));
  add("tx_size", std::to_string(info.tx_attr->size));
  add("rx_size", std::to_string(info.rx_attr->size));
  add("cq_data_size", std::to_string(info.domain_attr->cq_data_size));
  add("msg_order", library.text(&info.tx_attr->msg_order, FI_TYPE_MSG_ORDER));
  add("control_progress", library.text(&info.domain_attr->control_progress, FI_TYPE_PROGRESS));
  add("data_progress", library.text(&info.domain_attr->data_progress, FI_TYPE_PROGRESS));
  add("threading", library.text(&info.domain_attr->threading, FI_TYPE_THREADING));
}

// "fi_sockaddr_in://127.0.0.1:0", from the text that libfabric gives of the whole offer.
std::string source_address(const fi_info& info) {
  if (!info.src_addr) return "";
  const std::string text = OfiLibrary::get().text(&info, FI_TYPE_INFO);
  const std::string label = "src_addr: ";
  const size_t start = text.find(label);
  if (start == std::string::npos) return "";
  return text.substr(start + label.size(), text.find('\n', start) - start - label.size());
}

Availability unavailable(const std::string& provider, bool is_known) {
  Availability entry;
  entry.transport = "ofi";
  entry.device = provider;
  entry.reason = is_known ? "libfabric has this provider, but it finds no device to use"
                          : "this libfabric was built without this provider, or it found no device";
  entry.remedy = is_known ? "nothing to do unless the host has such hardware; FI_LOG_LEVEL=info "
                            "fi_info -p PROVIDER says more"
                          : "if the host has such hardware, install its driver and a libfabric "
                            "with this provider (WEFT_LIBFABRIC=path)";
  entry.facts["libfabric"] = version_text(OfiLibrary::get().version());
  return entry;
}

// What an endpoint of this type would have; none when it cannot even be prepared.
std::vector<std::string> operations_here(const std::string& provider, fi_ep_type type) {
  Config config;
  config.device = provider;
  config.endpoint = endpoint_name(type);
  std::vector<std::string> names;
  try {
    const InfoPtr info = choose(config);
    Fid<fid_fabric> fabric;
    Fid<fid_domain> domain;
    if (open_fabric(*info, fabric) == 0 && open_domain(*info, fabric, domain) == 0)
      for (Op op : operations_of(*info, domain.get())) names.emplace_back(name_of(op));
  } catch (const Error&) {
    names.clear();
  }
  return names;
}

Availability describe_provider(const std::string& provider, const fi_info* offers) {
  Availability entry;
  entry.transport = "ofi";
  entry.device = provider;
  entry.available = true;
  std::vector<std::string> domains, fabrics, addresses;
  for (fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
    for (const fi_info* info = offers; info; info = info->next) {
      if (info->ep_attr->type != type) continue;
      // The default endpoint's limit: the first type offered.
      if (entry.endpoints.empty()) entry.max_bytes = info->ep_attr->max_msg_size;
      add_once(entry.endpoints, endpoint_name(type));
      add_once(domains, text_of(info->domain_attr->name));
      add_once(fabrics, text_of(info->fabric_attr->name));
      add_once(addresses, source_address(*info));
      add_facts(*info, entry.facts);
    }
    if (entry.endpoints.empty() || entry.endpoints.back() != endpoint_name(type)) continue;
    const auto operations = operations_here(provider, type);
    for (const auto& operation : operations) add_once(entry.operations, operation);
    entry.facts[std::string(endpoint_name(type)) + ".operations"] = joined(operations);
  }
  entry.facts["verified"] = verified(provider);
  entry.facts["domains"] = joined(domains);
  entry.facts["fabrics"] = joined(fabrics);
  entry.facts["addresses"] = joined(addresses);
  entry.facts["version"] = version_text(offers->fabric_attr->prov_version);
  entry.facts["libfabric"] = version_text(OfiLibrary::get().version());
  return entry;
}

// Core providers by name, and the layered ones ("tcp;ofi_rxm") that they appear in.
std::vector<std::string> usable_names(const std::vector<std::string>& known) {
  std::vector<std::string> names = known;
  for (const char* name : kHardware) add_once(names, name);
  const InfoPtr all = offers("", FI_EP_UNSPEC);
  for (const fi_info* info = all.get(); info; info = info->next)
    add_once(names, text_of(info->fabric_attr->prov_name));
  return names;
}

}  // namespace

std::vector<Availability> ofi_availability() {
  try {
    OfiLibrary::get();
  } catch (const Error& error) {
    Availability none;
    none.transport = "ofi";
    none.reason = error.problem();
    none.remedy = error.remedy();
    return {none};
  }
  const KeepSignals keep(false);
  std::vector<Availability> list;
  const auto known = known_providers();
  for (const std::string& name : usable_names(known)) {
    const InfoPtr offer = offers(name, FI_EP_UNSPEC);
    const bool is_known = std::ranges::find(known, name) != known.end();
    list.push_back(offer ? describe_provider(name, offer.get()) : unavailable(name, is_known));
  }
  return list;
}

#else

std::vector<Availability> ofi_availability() {
  Availability none;
  none.transport = "ofi";
  none.reason = "this weft was built without libfabric's headers";
  none.remedy = "install libfabric-dev and build weft again";
  return {none};
}

#endif

}  // namespace weft::transport
