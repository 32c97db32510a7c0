// checkpoint.h: a training program's own checkpoints: the next step, and floats of the device,
// in a file.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "check.h"

struct Floats {
	float *data;
	size_t count;
};

// Saves the result of all streams' work. The file is replaced as a whole, or not at all.
inline void save_checkpoint(const std::string &path, int next, const std::vector<Floats> &parts)
{
	std::string fresh = path + ".new";
	std::vector<float> values;
	FILE *file = fopen(fresh.c_str(), "wb");
	bool good = file && fwrite(&next, sizeof next, 1, file) == 1;
	CUDA_CHECK(cudaDeviceSynchronize());
	for (const Floats &part : parts) {
		values.resize(part.count);
		CUDA_CHECK(cudaMemcpy(values.data(), part.data, part.count * sizeof(float),
				      cudaMemcpyDeviceToHost));
		good = good && fwrite(values.data(), sizeof(float), part.count, file) == part.count;
	}
	good = good && fflush(file) == 0 && fsync(fileno(file)) == 0 && fclose(file) == 0;
	if (!good || rename(fresh.c_str(), path.c_str()) != 0)
		die("cannot write %s", path.c_str());
}

// Returns the next step; any stream may use the floats at once.
inline int load_checkpoint(const std::string &path, const std::vector<Floats> &parts)
{
	int next;
	std::vector<float> values;
	FILE *file = fopen(path.c_str(), "rb");
	if (!file || fread(&next, sizeof next, 1, file) != 1)
		die("cannot read %s", path.c_str());
	for (const Floats &part : parts) {
		values.resize(part.count);
		if (fread(values.data(), sizeof(float), part.count, file) != part.count)
			die("%s is of another model", path.c_str());
		CUDA_CHECK(cudaMemcpy(part.data, values.data(), part.count * sizeof(float),
				      cudaMemcpyHostToDevice));
	}
	fclose(file);
	CUDA_CHECK(cudaDeviceSynchronize());
	return next;
}
