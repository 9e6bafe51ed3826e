// The devices of this process, by name and by number.
#pragma once

#include <string>
#include <string_view>

#include "core/device.h"

namespace ral {

// Devices stay for the life of the process. id: which of several of that name.
Status open_device(std::string_view name, int32_t id, Device** found);
// Null where there is none; of GPUs those that were opened.
Device* device_at(int32_t number, int32_t id) noexcept;

Status register_device(const ral_device& device, int32_t* number);

// "cpu:0", for messages; a number that no device has as "device 7:0".
std::string device_text(uint8_t number, uint8_t id);

}  // namespace ral
