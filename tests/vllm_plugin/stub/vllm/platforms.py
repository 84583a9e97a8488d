class current_platform:
    @staticmethod
    def get_device_name() -> str:
        return "cpu"

    @staticmethod
    def is_cpu() -> bool:
        return True
